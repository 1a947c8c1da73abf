// The stand-in accelerator: a device of torch for tests of code that is written for GPUs, on machines without one.
//
//   options.h     what a test may switch on
//   activity.h    counts of kernels, waits and copies
//   memory.h      memory that the host cannot read, pinned memory
//   transfers.h   copies that arrive late, waits
//   device.h      devices, streams and generators, as torch sees them
//   tensors.h     tensors on the device and their views on the host
//   arithmetic.h  rounding
//   kernels.h     every operation: checked, counted, and computed by the host's kernel
//
// This file has the operations with a kernel of their own, and the functions that __init__.py calls.
#include "kernels.h"

#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

namespace standin {
namespace {

Device with_index(std::optional<Device> device) {
  return device && device->has_index() ? *device : Device(TYPE, current_device);
}

// Memory

Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  require_type(c10::dtype_or_default(type));
  const c10::DeviceGuard guard(with_index(device));
  return at::detail::empty_generic(sizes, &device_memory, KEYS, c10::dtype_or_default(type), format);
}

Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  return make(sizes, strides, c10::dtype_or_default(type), with_index(device));
}

Tensor& set_storage(Tensor& self, at::Storage storage, int64_t offset, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (strides.empty() && !sizes.empty())
    impl->set_sizes_contiguous(sizes);
  else
    impl->set_sizes_and_strides(sizes, strides);
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes() / self.itemsize());
  return set_storage(self, std::move(storage), 0, {count}, {1});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_nothing(Tensor& self) {
  return set_tensor(self, make({0}, {1}, self.scalar_type(), self.device()));
}

// Copies

void copy_to_device(const Tensor& host, const Tensor& device, bool non_blocking) {
  const bool runs_on = non_blocking && host.is_contiguous() && pinned_memory.contains(host.const_data_ptr());
  if (!runs_on) wait_for_device("copy to the device");
  activity.add_copy(true, host.nbytes());
  host_view(device).copy_(host);
  if (runs_on) transfers.read_until_wait(host);
}

void copy_to_host(const Tensor& device, const Tensor& host, bool non_blocking) {
  activity.add_copy(false, device.nbytes());
  if (non_blocking && host.numel()) {
    transfers.deliver_later(host, host_view(device).clone());
  } else {
    wait_for_device("copy to the host");
    host.copy_(host_view(device));
  }
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (!on_device(from)) {
    copy_to_device(from, to, non_blocking);
  } else if (!on_device(to)) {
    copy_to_host(from, to, non_blocking);
  } else {
    activity.add_kernel("copy on the device");
    HostViews views;
    views.of(to).copy_(views.of(from));
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar read_number(const Tensor& self) {
  wait_for_device("a number to the host");
  return at::_local_scalar_dense(host_view(self));
}

// Views

Tensor view(const Tensor& self, c10::IntArrayRef sizes) {
  return at::native::view(self, sizes);
}

Tensor reshape_alias(const Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return at::native::_reshape_alias(self, sizes, strides);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize);
  m.impl("set_", &set_nothing);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &read_number);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &at::native::unfold);
  // For other devices torch composes these of smaller operations, which round differently from the host's kernels.
  for (const char* name : {"convolution", "_convolution", "convolution_backward", "native_group_norm",
                           "native_layer_norm", "native_batch_norm", "mish_backward", "silu_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

// Copies handle conjugate and negative views themselves; torch would materialise them by a copy, without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

// For Python

Tensor generator_state(int64_t index) {
  return Tensor::wrap_tensor_impl(hooks.getDefaultGenerator(static_cast<DeviceIndex>(index)).unsafeGetGeneratorImpl()->get_state());
}

void set_generator_state(int64_t index, const Tensor& state) {
  hooks.getDefaultGenerator(static_cast<DeviceIndex>(index)).unsafeGetGeneratorImpl()->set_state(*state.unsafeGetTensorImpl());
}

void seed(int64_t index, int64_t value) {
  hooks.getDefaultGenerator(static_cast<DeviceIndex>(index)).unsafeGetGeneratorImpl()->set_current_seed(static_cast<uint64_t>(value));
}

TORCH_LIBRARY(standin, m) {
  m.def("register_hooks() -> ()", [] { at::RegisterPrivateUse1HooksInterface(&hooks); });
  m.def("device_count() -> int", [] { return int64_t(DEVICES); });
  m.def("current_device() -> int", [] { return int64_t(current_device); });
  m.def("set_device(int index) -> ()", [](int64_t index) { hooks.setCurrentDevice(static_cast<DeviceIndex>(index)); });
  m.def("synchronize() -> ()", [] { wait_for_device("synchronize"); });
  m.def("settle() -> ()", [] { transfers.finish(); });
  m.def("counts() -> str", [] { return activity.json(); });
  m.def("reset() -> ()", [] {
    activity.reset();
    for (DeviceIndex index = 0; index < DEVICES; index++) device_memory.reset_peak(index);
  });
  m.def("set_option(str name, float value) -> float", [](std::string name, double value) { return set_value(name, value); });
  m.def("option(str name) -> float", [](std::string name) { return value_of(name); });
  m.def("options() -> str[]", [] { return std::vector<std::string>(option_names.begin(), option_names.end()); });
  m.def("allocated(int index) -> int", [](int64_t index) { return int64_t(device_memory.allocated(static_cast<DeviceIndex>(index))); });
  m.def("peak(int index) -> int", [](int64_t index) { return int64_t(device_memory.peak(static_cast<DeviceIndex>(index))); });
  m.def("capacity() -> int", [] { return int64_t(capacity()); });
  m.def("reset_peak(int index) -> ()", [](int64_t index) { device_memory.reset_peak(static_cast<DeviceIndex>(index)); });
  m.def("generator_state(int index) -> Tensor", &generator_state);
  m.def("set_generator_state(int index, Tensor state) -> ()", &set_generator_state);
  m.def("seed(int index, int value) -> ()", &seed);
}

}  // namespace

// The allocator and the devices are found by torch from here on.
REGISTER_ALLOCATOR(TYPE, &device_memory);
C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuardImpl);

}  // namespace standin
