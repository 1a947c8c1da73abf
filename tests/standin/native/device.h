// The devices as torch sees them: current device, streams, events, random generators.
#pragma once

#include "transfers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace standin {

using c10::Device, c10::DeviceIndex;

// One stream per device. Kernels are done when their call returns; only copies are late (transfers.h).
struct DeviceGuardImpl final : c10::impl::DeviceGuardImplInterface {
  static void require_device(Device device) {
    TORCH_CHECK(device.type() == TYPE && device.index() < DEVICES, "standin: invalid device ", device, "; there are ",
                int(DEVICES));
  }
  c10::DeviceType type() const override { return TYPE; }
  DeviceIndex deviceCount() const noexcept override { return DEVICES; }

  Device getDevice() const override { return {TYPE, current_device}; }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  void setDevice(Device device) const override {
    require_device(device);
    uncheckedSetDevice(device);
  }
  Device exchangeDevice(Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream getStream(Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(Device device) const override { return getStream(device); }
  c10::Stream getNewStream(Device device, int) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  bool queryStream(const c10::Stream&) const override { return transfers.idle(); }
  void synchronizeStream(const c10::Stream&) const override { wait_for_device("synchronize"); }
  void synchronizeDevice(DeviceIndex) const override { wait_for_device("synchronize"); }

  void record(void** event, const c10::Stream&, DeviceIndex, c10::EventFlag) const override {
    static char mark;
    *event = &mark;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return transfers.idle(); }
  void synchronizeEvent(void*) const override { wait_for_device("synchronize"); }
  double elapsedTime(void*, void*, DeviceIndex) const override { return 0; }
  c10::DeviceCapability getDeviceCapability(Device) const override { return {}; }
};

// Random numbers of a device are not those of the host, nor those of another device, for the same seed.
class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(DeviceIndex index)
      : c10::GeneratorImpl({TYPE, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {
    set_current_seed(c10::detail::getNonDeterministicRandom() >> 1);
  }
  const at::Generator& host() const { return host_; }

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    host_.set_current_seed(seed ^ (0x5bd1e995u * uint32_t(device().index() + 1)));
  }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "standin: a generator has no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "standin: a generator has no offset"); }
  void set_state(const c10::TensorImpl& state) override { host_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host_.unsafeGetGeneratorImpl()->get_state(); }

 private:
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    copy->seed_ = seed_;
    copy->host_ = host_.clone();
    return copy;
  }

  uint64_t seed_ = 0;
  at::Generator host_ = at::detail::createCPUGenerator();
};

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }

  DeviceIndex deviceCount() const override { return DEVICES; }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(DeviceIndex index) const override { DeviceGuardImpl().setDevice({TYPE, index}); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    return DeviceGuardImpl().exchangeDevice({TYPE, index}).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  Device getDeviceFromPtr(void*) const override { return {TYPE, current_device}; }

  bool isPinnedPtr(const void* data) const override { return pinned_memory.contains(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }

  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    static const std::array<at::Generator, DEVICES> generators{
        at::make_generator<DeviceGenerator>(0), at::make_generator<DeviceGenerator>(1)};
    return generators.at(index < 0 ? current_device : index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    auto made = at::make_generator<DeviceGenerator>(index < 0 ? current_device : index);
    made.set_current_seed(c10::default_rng_seed_val);
    return made;
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    auto moved = device_memory.allocate(bytes);
    if (const auto kept = std::min(bytes, storage.nbytes()))
      device_memory.copy_data(moved.mutable_get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(moved));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

inline Hooks hooks;

}  // namespace standin
