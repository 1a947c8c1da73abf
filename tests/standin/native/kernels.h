// Every operation without a kernel of its own: the host's kernel, on views of the device's memory.
//
// torch offers at::native::cpu_fallback for this. It copies arguments that are on the host to the device silently, so
// mixed devices would go unnoticed; here they are refused as CUDA refuses them.
#pragma once

#include "arithmetic.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

namespace standin {

using c10::IValue;

// The host must know how large their results are, or reads their result, so it waits.
inline const Names WAITING{"aten::nonzero",  "aten::masked_select",      "aten::_unique",     "aten::_unique2",
                           "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",    "aten::equal",
                           "aten::repeat_interleave", "aten::_linalg_check_errors"};
// They take indices from the host too.
inline const Names INDEXING{"aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_",
                            "aten::_index_put_impl_", "aten::_unsafe_index_put"};
// CUDA has no deterministic kernel for them (documentation of torch.use_deterministic_algorithms).
inline const Names NONDETERMINISTIC{
    "aten::avg_pool3d_backward", "aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward",
    "aten::adaptive_max_pool2d_backward", "aten::fractional_max_pool2d_backward", "aten::fractional_max_pool3d_backward",
    "aten::max_unpool2d", "aten::max_unpool3d", "aten::upsample_linear1d_backward", "aten::upsample_bilinear2d_backward",
    "aten::upsample_bicubic2d_backward", "aten::upsample_trilinear3d_backward", "aten::reflection_pad1d_backward",
    "aten::reflection_pad2d_backward", "aten::reflection_pad3d_backward", "aten::nll_loss2d_forward",
    "aten::_ctc_loss_backward", "aten::_embedding_bag_backward", "aten::put_", "aten::histc", "aten::kthvalue",
    "aten::median", "aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward"};

inline bool is_nondeterministic(const std::string& name, const IValue& first) {
  if (NONDETERMINISTIC.count(name)) return true;
  return name == "aten::cumsum" && first.isTensor() && !at::isIntegralType(first.toTensor().scalar_type(), true);
}

template <class Visit>
void for_each_tensor(const IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorList().vec())
      if (tensor && tensor->defined()) visit(*tensor);
  }
}

template <class Map>
IValue map_tensors(const IValue& value, Map map) {
  const auto mapped = [&](const Tensor& tensor) { return tensor.defined() ? map(tensor) : tensor; };
  if (value.isTensor()) return mapped(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(mapped(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorList().vec())
      list.push_back(tensor ? std::optional<Tensor>(mapped(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

// One call of one operation.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), schema_(op.schema()), name_(schema_.name()), stack_(stack),
        given_(stack.end() - static_cast<int64_t>(schema_.arguments().size()), stack.end()) {}

  void run() {
    device_ = find_device();
    for (size_t i = 0; i < given_.size(); i++)
      for_each_tensor(given_[i], [&](const Tensor& tensor) { require_device(tensor, i); });
    activity.add_kernel(name_);
    if (is_nondeterministic(name_, given_.empty() ? IValue() : given_[0]))
      at::globalContext().alertNotDeterministic(name_);
    if (WAITING.count(name_)) wait_for_device(name_);

    stack_.resize(stack_.size() - given_.size());
    for (size_t i = 0; i < given_.size(); i++) stack_.push_back(host_argument(i));
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);

    for (const auto& [tensor, host] : outgrown_) {
      if (host.sizes() != tensor.sizes()) resize(tensor, host.sizes(), std::nullopt);
      if (host.numel()) host_view(tensor).copy_(host);
    }
    const auto first = stack_.size() - schema_.returns().size();
    for (size_t i = first; i < stack_.size(); i++) stack_[i] = device_result(stack_[i], schema_.returns()[i - first]);
  }

 private:
  bool is_written(size_t argument) const {
    const auto* alias = schema_.arguments()[argument].alias_info();
    return alias && alias->isWrite();
  }
  bool is_index(size_t argument) const {
    return INDEXING.count(name_) && schema_.arguments()[argument].name() == "indices";
  }

  Device find_device() const {
    std::optional<Device> found;
    for (const auto& value : given_)
      for_each_tensor(value, [&](const Tensor& tensor) { if (!found && on_device(tensor)) found = tensor.device(); });
    for (const auto& value : given_)
      if (!found && value.isDevice() && value.toDevice().type() == TYPE && value.toDevice().has_index())
        found = value.toDevice();
    return found.value_or(Device(TYPE, current_device));
  }

  // As on CUDA, numbers without dimensions and indices may come from the host.
  void require_device(const Tensor& tensor, size_t argument) const {
    if (tensor.device() == device_) return;
    const bool number = tensor.device().is_cpu() && tensor.dim() == 0 && !is_written(argument);
    const bool index = tensor.device().is_cpu() && is_index(argument);
    TORCH_CHECK(number || index, "Expected all tensors to be on the same device, but found at least two devices, ",
                device_, " and ", tensor.device(), "! (when checking argument ",
                schema_.arguments()[argument].name(), " of ", name_, ")");
    if (index && tensor.numel()) wait_for_device("indices from the host");
  }

  IValue host_argument(size_t argument) {
    const auto& value = given_[argument];
    if (schema_.arguments()[argument].type()->str() == "Generator?") return host_generator(value);
    if (value.isDevice()) return Device(c10::kCPU);
    return map_tensors(value, [&](const Tensor& tensor) -> Tensor {
      if (!on_device(tensor)) return tensor;
      if (is_written(argument)) return tensor.numel() ? views_.of(tensor) : make_outgrown(tensor);
      if (is_index(argument) && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte))
        wait_for_device("a mask as index");
      return round_input(views_.of(tensor), name_);
    });
  }

  // An empty tensor that is written may be resized by the kernel, which a view of device memory cannot be.
  Tensor make_outgrown(const Tensor& tensor) {
    outgrown_.emplace_back(tensor, at::empty(tensor.sizes(), tensor.options().device(c10::kCPU)));
    return outgrown_.back().second;
  }

  at::Generator host_generator(const IValue& value) const {
    const auto generator = value.isGenerator() ? value.toGenerator() : hooks.getDefaultGenerator(device_.index());
    TORCH_CHECK(generator.device().type() == TYPE, "Expected a 'standin' device type for generator but found '",
                generator.device().type(), "'");
    return static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->host();
  }

  IValue device_result(const IValue& value, const c10::Argument& returned) const {
    const auto* alias = returned.alias_info();
    if (!alias) {
      return map_tensors(value, [&](const Tensor& host) {
        perturb_result(host, name_, hash_of_sizes());
        return move_to_device(host, device_);
      });
    }
    for (size_t i = 0; i < given_.size(); i++) {
      if (!is_written(i) || schema_.arguments()[i].alias_info()->beforeSet() != alias->beforeSet()) continue;
      for_each_tensor(given_[i], [&](const Tensor& t) { perturb_result(host_view(t), name_, hash_of_sizes()); });
      return given_[i];
    }
    TORCH_CHECK(false, "standin: ", name_, " returns a view, for which this device has no kernel");
  }

  uint64_t hash_of_sizes() const {
    uint64_t hash = 1;
    for (const auto& value : given_)
      for_each_tensor(value, [&](const Tensor& tensor) {
        for (const auto size : tensor.sizes()) hash = (hash ^ static_cast<uint64_t>(size)) * 0xff51afd7ed558ccdu + 1;
      });
    return hash >> 24;
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  const std::string& name_;
  torch::jit::Stack& stack_;
  const std::vector<IValue> given_;
  Device device_{TYPE, 0};
  HostViews views_;
  std::vector<std::pair<Tensor, Tensor>> outgrown_;  // on the device, on the host
};

inline void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call(op, *stack).run();
}

}  // namespace standin
