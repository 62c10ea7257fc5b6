// The groups of the lab, made of the loops that the wheel of MLX ships as headers.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "jaccl/group.h"
#include "jaccl/rdma.h"
#include "jaccl/reduction_ops.h"

namespace lab {

enum class Operation { sum, max, min };

// What a process must know of its world.
struct Wiring {
  int rank, size;
  std::string coordinator;
  bool ring;
  std::vector<std::vector<std::string>> devices;  // by rank, one for each wire
  size_t wires;                                   // of a mesh: as many as the two ranks with the fewest have
};

constexpr size_t LARGE = 64 << 10;  // bytes from which on a reduction is made in two steps, or in both directions

// One reduction of all dtypes of a size: MLX's loops are compiled once for each size.
template <typename Word>
struct Reduction {
  void (*into)(const void*, void*, size_t);
  void (*of_two)(const void*, const void*, void*, size_t);

  void operator()(const Word* input, Word* output, size_t count) const { into(input, output, count); }
  void operator()(const Word* one, const Word* other, Word* output, size_t count) const {
    of_two(one, other, output, count);
  }
};

template <typename Word, typename T, template <typename> typename Op>
Reduction<Word> reduction() {
  return {
      [](const void* input, void* output, size_t count) {
        Op<T>()(static_cast<const T*>(input), static_cast<T*>(output), count);
      },
      [](const void* one, const void* other, void* output, size_t count) {
        Op<T>()(static_cast<const T*>(one), static_cast<const T*>(other), static_cast<T*>(output), count);
      }};
}

template <size_t size>
using Word = std::conditional_t<
    size == 1,
    uint8_t,
    std::conditional_t<size == 2, uint16_t, std::conditional_t<size == 4, uint32_t, uint64_t>>>;

// Calls `use` with the reduction, and a word of the dtype's size.
template <typename Use>
void with_reduction(Operation operation, int dtype, Use&& use) {
  jaccl::dispatch_all_types(dtype, [&](auto type) {
    using T = JACCL_GET_TYPE(type);
    using W = Word<sizeof(T)>;
    use(operation == Operation::sum       ? reduction<W, T, jaccl::SumOp>()
            : operation == Operation::max ? reduction<W, T, jaccl::MaxOp>()
                                          : reduction<W, T, jaccl::MinOp>(),
        W{});
  });
}

// What both shapes share.
class LabGroup : public jaccl::Group {
 public:
  LabGroup(const Wiring& wiring, jaccl::SideChannel channel)
      : rank_(wiring.rank), size_(wiring.size), channel_(std::move(channel)) {}

  int rank() override { return rank_; }
  int size() override { return size_; }
  void all_sum(const void* in, void* out, size_t bytes, int dtype) override { reduce(Operation::sum, in, out, bytes, dtype); }
  void all_max(const void* in, void* out, size_t bytes, int dtype) override { reduce(Operation::max, in, out, bytes, dtype); }
  void all_min(const void* in, void* out, size_t bytes, int dtype) override { reduce(Operation::min, in, out, bytes, dtype); }
  void barrier() override { channel_.barrier(); }

 protected:
  virtual void reduce(Operation operation, const void* in, void* out, size_t bytes, int dtype) = 0;

  int rank_, size_;
  jaccl::SideChannel channel_;
};

Wiring read_wiring();
jaccl::SideChannel connect_side_channel(const Wiring& wiring);
std::shared_ptr<jaccl::Group> make_mesh(const Wiring& wiring);
std::shared_ptr<jaccl::Group> make_ring(const Wiring& wiring);

// Opens the devices and makes a queue pair on each; an empty name is no connection.
std::vector<jaccl::Connection> open_connections(const std::vector<std::string>& devices);
// Connects each queue pair to the other end; `theirs` are in the order of the connections.
void connect(std::vector<jaccl::Connection>& connections, const std::vector<jaccl::Destination>& theirs);
std::vector<jaccl::Destination> described(std::vector<jaccl::Connection>& connections);

}  // namespace lab
