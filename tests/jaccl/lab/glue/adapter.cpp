// A group of the lab as MLX's distributed operations call it, and the functions that stand for MLX's own.
#include <cstdlib>
#include <stdexcept>

#include "adapter.h"
#include "groups.h"
#include "mlx/array.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/distributed/distributed_impl.h"

namespace lab {
namespace {

using namespace mlx::core;

int dtype_of(const array& value) {
  switch (value.dtype().val()) {
    case Dtype::Val::bool_: return jaccl::Bool;
    case Dtype::Val::int8: return jaccl::Int8;
    case Dtype::Val::int16: return jaccl::Int16;
    case Dtype::Val::int32: return jaccl::Int32;
    case Dtype::Val::int64: return jaccl::Int64;
    case Dtype::Val::uint8: return jaccl::UInt8;
    case Dtype::Val::uint16: return jaccl::UInt16;
    case Dtype::Val::uint32: return jaccl::UInt32;
    case Dtype::Val::uint64: return jaccl::UInt64;
    case Dtype::Val::float16: return jaccl::Float16;
    case Dtype::Val::bfloat16: return jaccl::BFloat16;
    case Dtype::Val::float32: return jaccl::Float32;
    case Dtype::Val::float64: return jaccl::Float64;
    case Dtype::Val::complex64: return jaccl::Complex64;
  }
  throw std::invalid_argument("[jaccl] unknown dtype");
}

class Adapter : public distributed::detail::GroupImpl {
 public:
  explicit Adapter(std::shared_ptr<jaccl::Group> group) : group_(std::move(group)) {}

  Stream communication_stream(StreamOrDevice s) override { return to_stream(s, Device::cpu); }
  int rank() override { return group_->rank(); }
  int size() override { return group_->size(); }
  std::shared_ptr<GroupImpl> split(int, int) override { throw std::runtime_error("[jaccl] Group split not supported."); }

  void all_sum(const array& in, array& out, Stream s) override { reduce(&jaccl::Group::all_sum, in, out, in.nbytes(), s); }
  void all_max(const array& in, array& out, Stream s) override { reduce(&jaccl::Group::all_max, in, out, in.nbytes(), s); }
  void all_min(const array& in, array& out, Stream s) override { reduce(&jaccl::Group::all_min, in, out, in.nbytes(), s); }
  void sum_scatter(const array& in, array& out, Stream s) override {
    reduce(&jaccl::Group::sum_scatter, in, out, out.nbytes(), s);
  }

  void all_gather(const array& in, array& out, Stream s) override {
    cpu::get_command_encoder(s).dispatch([group = group_, from = in.data<char>(), to = out.data<char>(), bytes = in.nbytes()] {
      group->all_gather(from, to, bytes);
    });
  }
  void send(const array& in, int to, Stream s) override {
    cpu::get_command_encoder(s).dispatch(
        [group = group_, from = in.data<char>(), bytes = in.nbytes(), to] { group->send(from, bytes, to); });
  }
  void recv(array& out, int from, Stream s) override {
    cpu::get_command_encoder(s).dispatch(
        [group = group_, to = out.data<char>(), bytes = out.nbytes(), from] { group->recv(to, bytes, from); });
  }

 private:
  using Reduce = void (jaccl::Group::*)(const void*, void*, size_t, int);

  void reduce(Reduce function, const array& in, array& out, size_t bytes, Stream s) {
    cpu::get_command_encoder(s).dispatch(
        [group = group_, function, from = in.data<char>(), to = out.data<char>(), bytes, dtype = dtype_of(in)] {
          (group.get()->*function)(from, to, bytes, dtype);
        });
  }

  std::shared_ptr<jaccl::Group> group_;
};

}  // namespace

bool is_available() { return std::getenv("LAB_RDMA_DEVICES") && jaccl::ibv().is_available(); }

Group init(bool strict) {
  try {
    if (!is_available()) throw std::runtime_error("[jaccl] the lab is not set up: LAB_RDMA_DEVICES");
    auto wiring = read_wiring();
    return std::make_shared<Adapter>(wiring.ring ? make_ring(wiring) : make_mesh(wiring));
  } catch (const std::exception&) {
    if (strict) throw;
    return nullptr;
  }
}

Group init_with_gather(bool strict, distributed::AllGatherFactory) {
  if (strict) throw std::runtime_error("[jaccl] the lab has no all_gather_factory");
  return nullptr;
}

}  // namespace lab
