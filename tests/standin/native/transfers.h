// Copies that are under way when the call that started them returns, and the moments when the host waits for them.
//
// A non_blocking copy to the host shows NaN until the host waits. A non_blocking copy from pinned host memory may still
// read its source until then: a source that was overwritten in between is a hazard. It is counted, and with the option
// `late` it is an error.
#pragma once

#include "activity.h"
#include "memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/fill.h>

#include <utility>
#include <vector>

namespace standin {

using at::Tensor;

class Transfers {
 public:
  // `value` reaches `host` when the host waits.
  void deliver_later(const Tensor& host, Tensor value) {
    spoil(host);
    const std::lock_guard guard(mutex_);
    deliveries_.push_back({host, std::move(value)});
  }

  // The device reads `host` until the host waits. The tensor is held, so that its memory is not given to another.
  void read_until_wait(const Tensor& host) {
    const auto sum = digest(host);
    const std::lock_guard guard(mutex_);
    sources_.push_back({host, sum});
  }

  bool idle() const {
    const std::lock_guard guard(mutex_);
    return deliveries_.empty() && sources_.empty();
  }

  void finish() {
    std::vector<Delivery> deliveries;
    std::vector<Source> sources;
    {  // tensors are copied and freed without the lock: freeing one may need Python's
      const std::lock_guard guard(mutex_);
      deliveries.swap(deliveries_);
      sources.swap(sources_);
    }
    uint64_t overwritten = 0;
    for (const auto& source : sources) overwritten += digest(source.host) != source.digest;
    for (const auto& delivery : deliveries) delivery.host.copy_(delivery.value);
    if (!overwritten) return;
    activity.add_hazards(overwritten);
    TORCH_CHECK(get(late) == 0, "standin: pinned memory was overwritten while a non_blocking copy could still read it");
  }

 private:
  struct Delivery {
    Tensor host, value;
  };
  struct Source {
    Tensor host;
    uint64_t digest;
  };

  static void spoil(const Tensor& host) {
    if (host.scalar_type() != at::kBool && host.is_non_overlapping_and_dense())
      std::memset(host.data_ptr(), FRESH, host.nbytes());
    else
      host.fill_(host.is_floating_point() || host.is_complex() ? std::nan("") : 1.0);
  }

  static uint64_t digest(const Tensor& host) {
    const auto* bytes = static_cast<const unsigned char*>(host.const_data_ptr());
    uint64_t sum = host.nbytes();
    for (size_t i = 0; i < host.nbytes(); i++) sum = (sum + bytes[i] + 1) * 0x9e3779b97f4a7c15u;
    return sum;
  }

  mutable std::mutex mutex_;
  std::vector<Delivery> deliveries_;
  std::vector<Source> sources_;
};

inline Transfers transfers;

inline void wait_for_device(const std::string& cause) {
  activity.add_wait(cause);
  TORCH_CHECK(get(refuse_waits) == 0, "standin: the host waits for the device here (", cause, ")");
  transfers.finish();
}

}  // namespace standin
