// Verbs (RDMA) between the processes of one Linux machine, as far as MLX's JACCL uses them.
//
//   LAB_RDMA_DIR      folder in which the processes meet: a file for each queue pair, device and process
//   LAB_RDMA_DEVICES  rdma_r0p0=169.254.0.0,...: the devices that every process finds, each meant for one rank
//   LAB_RDMA_ERR      what a queue pair in the state ERR does with its work requests: flush (default), late (some polls
//                     later), silent (nothing), hang (the change to ERR never returns), or crash (SIGSEGV)
//   LAB_RDMA_CONTEXTS alike (default), differ (not all have the same functions), shared (a device has one), or fixed
//                     (they are read-only)
//   LAB_RDMA_LAYOUT   known (default), or other: a context has its functions elsewhere
//   LAB_RDMA_KEEPS    what a device keeps of a process that has not freed it: nothing (default), killed, or all (of one
//                     that has ended in order, too)
//   LAB_RDMA_MAX_QP, LAB_RDMA_MAX_MR, LAB_RDMA_MAX_PD, LAB_RDMA_MAX_CQ  of each device; 10 pairs and 100 regions by
//                     default, as Apple's were reported to have, and 64 of the others
//
// A peer that is gone is silence, as over Thunderbolt, and not an error. A send completes when the peer has taken it.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace lab {

constexpr uint64_t CAPACITY = 2u << 20;

// `dev-<name>`: what tests do to a device.
struct Faults {
  std::atomic<uint32_t> cut;        // no byte passes, in either direction
  std::atomic<uint32_t> fail_next;  // an ibv_wc_status: the next work request fails with it
  std::atomic<int> kept[4];         // made and not freed by any process ever, where LAB_RDMA_KEEPS says so
};

enum Kind { PAIRS, REGIONS, DOMAINS, QUEUES };

// `held-<pid>`: what a process has not given back; the order is known to lab.py.
struct Held {
  std::atomic<uint32_t> contexts, domains, queues, pairs, regions;
  std::atomic<uint32_t> violations;  // of the rules that a driver relies on
};

// `pair-<address>-<number>`: one direction of a cable, owned by its receiver.
struct Inbox {
  std::atomic<uint32_t> ready;
  std::atomic<uint64_t> tail, head;  // the sender's, the receiver's
  char data[CAPACITY];
};

struct Device {
  ibv_device device{};
  std::string name, address;
  Faults* faults = nullptr;
  int made[4] = {};  // by this process, and not freed
  struct Context* shared = nullptr;
};

struct alignas(4096) Context {
  ibv_context context{};  // first in each of these: JACCL's pointers are to it
  alignas(4096) Device* device = nullptr;
  int users = 0, opened = 1;
};

struct Domain {
  ibv_pd pd{};
  Context* context = nullptr;
  int users = 0;
};

struct Region {
  ibv_mr mr{};
  Domain* domain = nullptr;
};

struct Request {
  uint64_t id;
  char* data;
  uint32_t length;
  bool sent = false;
  uint64_t end = 0;
};

struct Pair;

struct Queue {
  ibv_cq cq{};
  Context* context = nullptr;
  std::mutex lock;  // of its pairs, too
  std::vector<Pair*> pairs;
  std::deque<ibv_wc> completions;
  int idle = 0;
};

struct Pair {
  ibv_qp qp{};
  Context* context = nullptr;
  Domain* domain = nullptr;
  Queue* queue = nullptr;
  Inbox *inbox = nullptr, *outbox = nullptr;
  std::string file, target;
  std::deque<Request> sends, receives;
  uint32_t max_sends = 0, max_receives = 0;
  int polls_in_error = 0;
};

template <typename T>
T* as(void* verbs_object) {
  return static_cast<T*>(verbs_object);
}

std::string setting(const char* name, const std::string& otherwise);
std::string in_folder(const std::string& file);
void* map_file(const std::string& path, size_t size, int flags);

template <typename T>
T* map_file(const std::string& path, int flags) {
  return static_cast<T*>(map_file(path, sizeof(T), flags));
}

Held& held();
int violation(const char* what, int code);
bool is_registered(const Pair* pair, const ibv_sge& entry);
void flush(Pair* pair);

int poll_cq(ibv_cq* cq, int room, ibv_wc* completions);
int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad);

}  // namespace lab

// The header declares some verbs otherwise than JACCL calls them, or as macros.
#define VERB(result, name, ...)                                                                   \
  extern "C" __attribute__((visibility("default"))) result lab_##name(__VA_ARGS__) __asm__("ibv_" #name); \
  extern "C" result lab_##name(__VA_ARGS__)
