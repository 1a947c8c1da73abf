// Device memory, which the host cannot read, and pinned host memory.
//
// A device address is a host address plus DISTANCE. No process can have memory there, so whoever dereferences a device
// address on the host gets a segmentation fault; kernels subtract DISTANCE again. Fresh memory is filled with ones,
// which is NaN in every floating-point type: a result that depends on uninitialised memory shows.
#pragma once

#include "options.h"

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace standin {

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex DEVICES = 2;
constexpr uint64_t CAPACITY = uint64_t(8) << 30;  // bytes of each device
constexpr uintptr_t DISTANCE = uintptr_t(1) << 53;
constexpr size_t ALIGNMENT = 64;
constexpr int FRESH = 0xff;

inline thread_local c10::DeviceIndex current_device = 0;

inline void* host_address(const void* device_address) {
  const auto address = reinterpret_cast<uintptr_t>(device_address);
  return address ? reinterpret_cast<void*>(address - DISTANCE) : nullptr;
}

inline void* take_host_memory(size_t bytes) {
  void* memory = nullptr;
  TORCH_CHECK(posix_memalign(&memory, ALIGNMENT, std::max<size_t>(bytes, 1)) == 0, "standin: the host is out of memory");
  return memory;
}

inline uint64_t capacity() {
  const auto asked = static_cast<uint64_t>(get(limit));
  return asked ? std::min(asked, CAPACITY) : CAPACITY;
}

class DeviceMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto index = current_device;
    const c10::Device device(TYPE, index);
    if (!bytes) return {nullptr, nullptr, &c10::detail::deleteNothing, device};
    reserve(index, bytes);
    void* memory = take_host_memory(bytes);
    std::memset(memory, FRESH, bytes);
    auto* far = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(memory) + DISTANCE);
    return {far, new Block{memory, bytes, index}, &DeviceMemory::free, device};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(host_address(to), host_address(from), bytes);
  }

  uint64_t allocated(c10::DeviceIndex index) const { return used_.at(index); }
  uint64_t peak(c10::DeviceIndex index) const { return peak_.at(index); }

  void reset_peak(c10::DeviceIndex index) {
    const std::lock_guard guard(mutex_);
    peak_.at(index) = used_.at(index).load();
  }

 private:
  struct Block {
    void* memory;
    size_t bytes;
    c10::DeviceIndex device;
  };

  void reserve(c10::DeviceIndex index, size_t bytes) {
    const std::lock_guard guard(mutex_);
    TORCH_CHECK_WITH(OutOfMemoryError, used_[index] + bytes <= capacity(), "standin: out of memory. Tried to allocate ",
                     bytes, " bytes on device ", int(index), ", which has ", capacity(), " bytes and uses ",
                     used_[index].load(), ".");
    used_[index] += bytes;
    peak_[index] = std::max(peak_[index].load(), used_[index].load());
  }

  static void free(void* context);  // no lock: a tensor may be freed anywhere

  std::mutex mutex_;
  std::array<std::atomic<uint64_t>, DEVICES> used_{}, peak_{};
};

inline DeviceMemory device_memory;

inline void DeviceMemory::free(void* context) {
  auto* block = static_cast<Block*>(context);
  device_memory.used_[block->device] -= block->bytes;
  std::free(block->memory);
  delete block;
}

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = take_host_memory(bytes);
    const std::lock_guard guard(mutex_);
    blocks_[reinterpret_cast<uintptr_t>(memory)] = std::max<size_t>(bytes, 1);
    return {memory, memory, &PinnedMemory::free, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &PinnedMemory::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  bool contains(const void* data) const {
    const auto address = reinterpret_cast<uintptr_t>(data);
    const std::lock_guard guard(mutex_);
    auto next = blocks_.upper_bound(address);
    if (next == blocks_.begin()) return false;
    const auto& [start, bytes] = *std::prev(next);
    return address - start < bytes;
  }

 private:
  static void free(void* memory);

  mutable std::mutex mutex_;
  std::map<uintptr_t, size_t> blocks_;  // first address -> bytes
};

inline PinnedMemory pinned_memory;

inline void PinnedMemory::free(void* memory) {
  {
    const std::lock_guard guard(pinned_memory.mutex_);
    pinned_memory.blocks_.erase(reinterpret_cast<uintptr_t>(memory));
  }
  std::free(memory);
}

}  // namespace standin
