// What a test may switch on. Every option is a number; 0 switches it off. options.py lists what each one does.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

namespace standin {

enum Option { limit, refuse_waits, late, bits, tf32, bits64, no_float64, jitter, chance, by_size, by_place, option_count };

constexpr std::array<const char*, option_count> option_names{
    "limit", "refuse_waits", "late", "bits", "tf32", "bits64", "no_float64", "jitter", "chance", "by_size", "by_place"};

inline std::array<std::atomic<double>, option_count> option_values{};

inline double get(Option option) {
  return option_values[option].load(std::memory_order_relaxed);
}

inline Option find_option(const std::string& name) {
  const auto found = std::find(option_names.begin(), option_names.end(), name);
  TORCH_CHECK_VALUE(found != option_names.end(), "standin: there is no option ", name);
  return static_cast<Option>(found - option_names.begin());
}

inline double value_of(const std::string& name) {
  return get(find_option(name));
}

// Sets an option and returns the value that it had.
inline double set_value(const std::string& name, double value) {
  return option_values[find_option(name)].exchange(value);
}

}  // namespace standin
