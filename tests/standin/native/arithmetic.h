// How an accelerator's arithmetic differs from the host's, by option: rounded inputs of products, and results whose last
// bits depend on chance, on the sizes of the inputs, or on the place in the batch.
#pragma once

#include "tensors.h"

#include <ATen/Context.h>

#include <string_view>
#include <unordered_set>

namespace standin {

using Names = std::unordered_set<std::string_view>;

// What tensor cores compute.
inline const Names CONVOLUTIONS{"aten::convolution", "aten::convolution_backward"};
inline const Names MATRIX_PRODUCTS{
    "aten::mm",     "aten::addmm",     "aten::addmm_",   "aten::bmm",     "aten::baddbmm", "aten::baddbmm_",
    "aten::addbmm", "aten::addbmm_",   "aten::mv",       "aten::addmv",   "aten::addmv_",  "aten::linear",
    "aten::_addmm_activation"};
// What adds up many numbers in an order of the device's own.
inline const Names REDUCTIONS{
    "aten::sum", "aten::mean", "aten::norm", "aten::linalg_vector_norm", "aten::_softmax", "aten::_log_softmax",
    "aten::native_group_norm", "aten::native_group_norm_backward", "aten::native_layer_norm",
    "aten::native_layer_norm_backward", "aten::native_batch_norm", "aten::native_batch_norm_backward",
    "aten::embedding_dense_backward"};

inline bool is_product(std::string_view name) {
  return CONVOLUTIONS.count(name) || MATRIX_PRODUCTS.count(name);
}

// Explicit bits of the inputs of a float32 product: as asked, or 10 (TF32) where torch's flags for CUDA allow it.
inline int product_bits(std::string_view name) {
  if (const int asked = static_cast<int>(get(bits))) return asked;
  if (get(tf32) == 0) return 0;
  const auto& context = at::globalContext();
  const bool allowed = CONVOLUTIONS.count(name) ? context.allowTF32CuDNN(at::Float32Op::CONV) : context.allowTF32CuBLAS();
  return allowed ? 10 : 0;
}

// To the nearest number with `kept` explicit bits, ties to even. Infinity and NaN stay.
template <class Number, class Word, int Explicit>
void round_numbers(Number* numbers, int64_t count, int kept) {
  const int dropped = Explicit - kept;
  if (dropped <= 0) return;
  for (int64_t i = 0; i < count; i++) {
    if (!std::isfinite(numbers[i])) continue;
    Word word;
    std::memcpy(&word, numbers + i, sizeof word);
    const Word unit = Word(1) << dropped, odd = (word >> dropped) & 1;
    word = (word + unit / 2 - 1 + odd) & ~(unit - 1);
    std::memcpy(numbers + i, &word, sizeof word);
  }
}

inline Tensor round_input(const Tensor& host, std::string_view name) {
  const bool product = is_product(name);
  if (host.scalar_type() == at::kFloat && product && product_bits(name)) {
    auto rounded = host.clone();
    round_numbers<float, uint32_t, 23>(rounded.data_ptr<float>(), rounded.numel(), product_bits(name));
    return rounded;
  }
  if (host.scalar_type() == at::kDouble && get(bits64) && (product || REDUCTIONS.count(name))) {
    auto rounded = host.clone();
    round_numbers<double, uint64_t, 52>(rounded.data_ptr<double>(), rounded.numel(), static_cast<int>(get(bits64)));
    return rounded;
  }
  return host;
}

// A uniform number from -1 to 1 of a 64-bit state (splitmix64).
inline double next_uniform(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>(static_cast<int64_t>(z ^ (z >> 31))) / 9.3e18;
}

// Perturbs a float32 result of a product or reduction. `sizes` is a hash of the sizes of the inputs.
inline void perturb_result(Tensor host, std::string_view name, uint64_t sizes) {
  if (!is_product(name) && !REDUCTIONS.count(name)) return;
  if (!host.defined() || host.scalar_type() != at::kFloat || !host.numel()) return;
  if (get(jitter) && host.is_non_overlapping_and_dense()) {
    static std::mutex mutex;
    static uint64_t state = 0;
    const std::lock_guard guard(mutex);
    state += static_cast<uint64_t>(get(chance));
    auto* numbers = host.data_ptr<float>();
    for (int64_t i = 0; i < host.numel(); i++)
      numbers[i] = static_cast<float>(numbers[i] * (1 + get(jitter) * next_uniform(state)));
  }
  if (!host.dim()) return;
  if (get(by_size)) host.mul_(1 + get(by_size) * static_cast<double>(sizes % 8191) / 8191);
  if (get(by_place))
    for (int64_t place = 0; place < host.size(0); place++)
      host.select(0, place).mul_(1 + get(by_place) * static_cast<double>(place % 5) / 5);
}

}  // namespace standin
