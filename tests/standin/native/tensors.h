// Tensors of a device: how they are made, resized, and looked at by the kernels of the host.
#pragma once

#include "device.h"

#include <ATen/EmptyTensor.h>

#include <unordered_map>

namespace standin {

inline bool on_device(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == TYPE;
}

constexpr c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

inline void require_type(at::ScalarType type) {
  TORCH_CHECK_TYPE(type != at::kDouble || get(no_float64) == 0, "standin: this device has no float64");
}

inline Tensor make(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType type, Device device) {
  require_type(type);
  const c10::DeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &device_memory, KEYS, type);
}

// Views of device tensors for the kernels of the host: the same memory under its host address, the same strides. Two
// tensors that share a storage share it here too, since kernels test for overlap by it.
class HostViews {
 public:
  Tensor of(const Tensor& tensor) {
    auto* impl = tensor.storage().unsafeGetStorageImpl();
    auto known = storages_.find(impl);
    if (known == storages_.end()) {
      c10::DataPtr data(host_address(impl->data()), Device(c10::kCPU));
      c10::Storage storage(c10::Storage::use_byte_size_t(), impl->nbytes(), std::move(data), nullptr, /*resizable=*/false);
      known = storages_.emplace(impl, std::move(storage)).first;
    }
    auto view = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(known->second), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    auto* bare = view.unsafeGetTensorImpl();
    bare->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) bare->set_wrapped_number(true);
    if (tensor.is_conj()) view._set_conj(true);
    if (tensor.is_neg()) view._set_neg(true);
    return view;
  }

 private:
  std::unordered_map<c10::StorageImpl*, c10::Storage> storages_;
};

inline Tensor host_view(const Tensor& tensor) {
  return HostViews().of(tensor);
}

inline Tensor move_to_device(const Tensor& host, Device device) {
  const auto dense = host.is_non_overlapping_and_dense() ? host : host.contiguous();
  auto moved = make(dense.sizes(), dense.strides(), dense.scalar_type(), device);
  host_view(moved).copy_(dense);
  return moved;
}

inline const Tensor& resize(const Tensor& tensor, c10::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  if (format) impl->empty_tensor_restride(*format);
  const auto bytes = at::detail::computeStorageNbytes(sizes, tensor.strides(), tensor.itemsize(), tensor.storage_offset());
  if (bytes > tensor.storage().nbytes()) hooks.resizePrivateUse1Bytes(tensor.storage(), bytes);
  return tensor;
}

}  // namespace standin
