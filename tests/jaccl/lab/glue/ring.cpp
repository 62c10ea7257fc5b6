// Connections to the two neighbours.
#include "groups.h"
#include "jaccl/ring_impl.h"
#include "jaccl/threadpool.h"

namespace lab {
namespace {

class Ring : public LabGroup {
 public:
  explicit Ring(const Wiring& wiring)
      : LabGroup(wiring, connect_side_channel(wiring)),
        left_(open_connections(wiring.devices[neighbour(-1)])),
        right_(open_connections(wiring.devices[neighbour(1)])),
        wires_(left_.size()),
        pool_(wires_ - 1) {
    make_buffers();
    auto lefts = channel_.all_gather(described(left_)), rights = channel_.all_gather(described(right_));
    connect(left_, rights[neighbour(-1)]);
    connect(right_, lefts[neighbour(1)]);
    loops_ = jaccl::RingImpl(rank_, size_, left_, right_, sends_, receives_, &pool_);
    channel_.barrier();
  }

  void all_gather(const void* in, void* out, size_t bytes) override {
    loops_.all_gather(static_cast<const char*>(in), static_cast<char*>(out), bytes, wires_);
  }

  void sum_scatter(const void* in, void* out, size_t bytes, int dtype) override {
    with_reduction(Operation::sum, dtype, [&](auto reduction, auto word) {
      using W = decltype(word);
      int64_t total = bytes / sizeof(W) * size_;
      loops_.reduce_scatter(static_cast<const W*>(in), static_cast<W*>(out), total, wires_, reduction);
    });
  }

  void send(const void* in, size_t bytes, int to) override { loops_.send(static_cast<const char*>(in), bytes, to, wires_); }
  void recv(void* out, size_t bytes, int from) override { loops_.recv(static_cast<char*>(out), bytes, from, wires_); }

 protected:
  void reduce(Operation operation, const void* in, void* out, size_t bytes, int dtype) override {
    with_reduction(operation, dtype, [&](auto reduction, auto word) {
      using W = decltype(word);
      auto* source = static_cast<const W*>(in);
      auto* target = static_cast<W*>(out);
      if (bytes < LARGE) loops_.all_reduce<1>(source, target, bytes / sizeof(W), 1, reduction);
      else loops_.all_reduce<2>(source, target, bytes / sizeof(W), wires_, reduction);
    });
  }

 private:
  int neighbour(int step) const { return (rank_ + step + size_) % size_; }

  void make_buffers() {
    for (int k = 0; k < BUFFER_SIZES; k++)
      for (int buffer = 0; buffer < NUM_BUFFERS; buffer++)
        for (int direction = 0; direction < 2; direction++)
          for (int wire = 0; wire < wires_; wire++) {
            sends_.emplace_back(FRAME_SIZE << k);
            sends_.back().register_to_protection_domain((direction ? left_ : right_)[wire].protection_domain);
            receives_.emplace_back(FRAME_SIZE << k);
            receives_.back().register_to_protection_domain((direction ? right_ : left_)[wire].protection_domain);
          }
  }

  std::vector<jaccl::Connection> left_, right_;  // before the buffers, which are given back first
  std::vector<jaccl::SharedBuffer> sends_, receives_;
  int wires_;
  jaccl::ThreadPool pool_;
  jaccl::RingImpl loops_;
};

}  // namespace

std::shared_ptr<jaccl::Group> make_ring(const Wiring& wiring) { return std::make_shared<Ring>(wiring); }

}  // namespace lab
