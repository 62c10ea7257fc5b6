// A connection, or several, between every two ranks.
#include "groups.h"
#include "jaccl/mesh_impl.h"
#include "jaccl/threadpool.h"

namespace lab {
namespace {

class Mesh : public LabGroup {
 public:
  explicit Mesh(const Wiring& wiring) : LabGroup(wiring, connect_side_channel(wiring)), pool_(0) {
    size_t wires = wiring.wires;
    for (size_t wire = 0; wire < wires; wire++) {
      std::vector<std::string> names(size_);
      for (int peer = 0; peer < size_; peer++)
        if (peer != rank_) names[peer] = wiring.devices[peer].at(wire);
      connections_.push_back(open_connections(names));
      buffers_.emplace_back();
      scatter_.emplace_back();
      make_buffers(wire);
    }
    for (auto& connections : connections_) {
      auto all = channel_.all_gather(described(connections));
      std::vector<jaccl::Destination> theirs(size_);
      for (int peer = 0; peer < size_; peer++) theirs[peer] = all[peer][rank_];
      connect(connections, theirs);
    }
    for (size_t wire = 0; wire < wires; wire++)
      loops_.emplace_back(rank_, size_, connections_[wire], buffers_[wire], scatter_[wire]);
    pool_.resize(wires - 1);
    channel_.barrier();
  }

  void all_gather(const void* in, void* out, size_t bytes) override {
    split(bytes, bytes, [&](int wire, int64_t from, int64_t count) {
      loops_[wire].all_gather(static_cast<const char*>(in) + from, static_cast<char*>(out) + from, count, bytes);
    });
  }

  void sum_scatter(const void* in, void* out, size_t bytes, int dtype) override {
    with_reduction(Operation::sum, dtype, [&](auto reduction, auto word) {
      using W = decltype(word);
      int64_t total = bytes / sizeof(W);
      split(bytes, total, [&](int wire, int64_t from, int64_t count) {
        loops_[wire].sum_scatter(static_cast<const W*>(in) + from, static_cast<W*>(out) + from, count, total, reduction);
      });
    });
  }

  void send(const void* in, size_t bytes, int to) override {
    split(bytes, bytes, [&](int wire, int64_t from, int64_t count) {
      loops_[wire].send(static_cast<const char*>(in) + from, count, to);
    });
  }

  void recv(void* out, size_t bytes, int source) override {
    split(bytes, bytes, [&](int wire, int64_t from, int64_t count) {
      loops_[wire].recv(static_cast<char*>(out) + from, count, source);
    });
  }

 protected:
  void reduce(Operation operation, const void* in, void* out, size_t bytes, int dtype) override {
    with_reduction(operation, dtype, [&](auto reduction, auto word) {
      using W = decltype(word);
      split(bytes, bytes / sizeof(W), [&](int wire, int64_t from, int64_t count) {
        auto* source = static_cast<const W*>(in) + from;
        auto* target = static_cast<W*>(out) + from;
        if (bytes < LARGE) loops_[wire].all_reduce(source, target, count, reduction);
        else loops_[wire].all_reduce_scatter_gather(source, target, count, reduction);
      });
    });
  }

 private:
  void make_buffers(size_t wire) {
    for (int k = 0; k < BUFFER_SIZES; k++) {
      for (int buffer = 0; buffer < NUM_BUFFERS; buffer++) {
        for (int peer = 0; peer < size_; peer++) {
          buffers_[wire].emplace_back(FRAME_SIZE << k);  // that of this rank is sent to all, the others are received
          for (int to = 0; to < size_; to++)
            if (to != rank_ && (peer == rank_ || peer == to)) registered(buffers_[wire], wire, to);
        }
        for (int slot = 0; slot < 2 * size_; slot++) {
          scatter_[wire].emplace_back(FRAME_SIZE << k);
          if (slot % size_ != rank_) registered(scatter_[wire], wire, slot % size_);
        }
      }
    }
  }

  void registered(std::vector<jaccl::SharedBuffer>& buffers, size_t wire, int peer) {
    buffers.back().register_to_protection_domain(connections_[wire][peer].protection_domain);
  }

  template <typename Use>
  void split(size_t bytes, int64_t total, Use&& use) {
    int64_t wires = bytes < MESH_MULTI_WIRE_MIN_BYTES ? 1 : loops_.size(), each = (total + wires - 1) / wires;
    dispatch_wires(&pool_, wires, [&](int wire) {
      int64_t from = std::min(wire * each, total);
      use(wire, from, std::min(each, total - from));
    });
  }

  std::vector<std::vector<jaccl::Connection>> connections_;  // before the buffers, which are given back first
  std::vector<std::vector<jaccl::SharedBuffer>> buffers_, scatter_;
  jaccl::ThreadPool pool_;
  std::vector<jaccl::MeshImpl> loops_;
};

}  // namespace

std::shared_ptr<jaccl::Group> make_mesh(const Wiring& wiring) { return std::make_shared<Mesh>(wiring); }

}  // namespace lab
