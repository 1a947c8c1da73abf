// What the device has been asked to do since the last reset: kernels, waits of the host, and bytes copied.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

namespace standin {

class Activity {
 public:
  void add_kernel(const std::string& name) {
    const std::lock_guard guard(mutex_);
    kernels_[name]++;
  }

  void add_wait(const std::string& cause) {
    const std::lock_guard guard(mutex_);
    waits_[cause]++;
  }

  void add_copy(bool to_device, uint64_t bytes) {
    const std::lock_guard guard(mutex_);
    auto& direction = to_device ? to_device_ : to_host_;
    direction.copies++;
    direction.bytes += bytes;
  }

  void add_hazards(uint64_t number) {
    const std::lock_guard guard(mutex_);
    hazards_ += number;
  }

  void reset() {
    const std::lock_guard guard(mutex_);
    kernels_.clear();
    waits_.clear();
    to_device_ = to_host_ = {};
    hazards_ = 0;
  }

  std::string json() const {
    const std::lock_guard guard(mutex_);
    std::ostringstream out;
    out << "{\"kernels\": " << table(kernels_) << ", \"waits\": " << table(waits_)
        << ", \"to_device\": " << to_device_.copies << ", \"bytes_to_device\": " << to_device_.bytes
        << ", \"to_host\": " << to_host_.copies << ", \"bytes_to_host\": " << to_host_.bytes
        << ", \"hazards\": " << hazards_ << "}";
    return out.str();
  }

 private:
  struct Direction {
    uint64_t copies = 0, bytes = 0;
  };

  static std::string table(const std::map<std::string, uint64_t>& counts) {
    std::string text;
    for (const auto& [name, count] : counts)
      text += (text.empty() ? "\"" : ", \"") + name + "\": " + std::to_string(count);
    return "{" + text + "}";
  }

  mutable std::mutex mutex_;
  std::map<std::string, uint64_t> kernels_, waits_;
  Direction to_device_, to_host_;
  uint64_t hazards_ = 0;
};

inline Activity activity;

}  // namespace standin
