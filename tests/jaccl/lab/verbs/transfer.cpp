// Posting, moving the bytes, and polling for completions. All progress is made in poll_cq and post_send.
#include <fcntl.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs.h"

namespace lab {
namespace {

constexpr int LATE = 20;  // polls
constexpr int YIELD_AFTER = 50, SLEEP_AFTER = 1000;  // polls that found nothing: JACCL spins on every rank

bool flushes() {
  static const bool does = setting("LAB_RDMA_ERR", "flush") != "silent";
  return does;
}

void copy_in(Inbox* box, uint64_t at, const void* from, size_t size) {
  size_t start = at % CAPACITY, first = std::min<size_t>(size, CAPACITY - start);
  memcpy(box->data + start, from, first);
  memcpy(box->data, static_cast<const char*>(from) + first, size - first);
}

void copy_out(Inbox* box, uint64_t at, void* to, size_t size) {
  size_t start = at % CAPACITY, first = std::min<size_t>(size, CAPACITY - start);
  memcpy(to, box->data + start, first);
  memcpy(static_cast<char*>(to) + first, box->data, size - first);
}

void complete(Pair* pair, const Request& request, ibv_wc_opcode opcode, ibv_wc_status status) {
  ibv_wc done{};
  done.wr_id = request.id;
  done.status = status;
  done.opcode = opcode;
  done.byte_len = status == IBV_WC_SUCCESS ? request.length : 0;
  done.qp_num = pair->qp.qp_num;
  pair->queue->completions.push_back(done);
}

void fail(Pair* pair, uint32_t status) {
  bool sending = !pair->sends.empty();
  auto& requests = sending ? pair->sends : pair->receives;
  complete(pair, requests.front(), sending ? IBV_WC_SEND : IBV_WC_RECV, static_cast<ibv_wc_status>(status));
  requests.pop_front();
  pair->qp.state = IBV_QPS_ERR;
  flush(pair);
}

void send_what_fits(Pair* pair) {
  if (!pair->outbox) pair->outbox = map_file<Inbox>(pair->target, 0);
  Inbox* box = pair->outbox;
  if (!box || !box->ready.load(std::memory_order_acquire)) return;
  for (auto& request : pair->sends) {
    if (request.sent) continue;
    uint64_t tail = box->tail.load(std::memory_order_relaxed);
    if (tail + 4 + request.length - box->head.load(std::memory_order_acquire) > CAPACITY) break;
    copy_in(box, tail, &request.length, 4);
    copy_in(box, tail + 4, request.data, request.length);
    request.sent = true;
    request.end = tail + 4 + request.length;
    box->tail.store(request.end, std::memory_order_release);
  }
  uint64_t taken = box->head.load(std::memory_order_acquire);
  while (!pair->sends.empty() && pair->sends.front().sent && taken >= pair->sends.front().end) {
    complete(pair, pair->sends.front(), IBV_WC_SEND, IBV_WC_SUCCESS);
    pair->sends.pop_front();
  }
}

void receive_what_came(Pair* pair) {
  Inbox* box = pair->inbox;
  while (!pair->receives.empty()) {
    uint64_t head = box->head.load(std::memory_order_relaxed);
    if (box->tail.load(std::memory_order_acquire) == head) return;
    uint32_t length;
    copy_out(box, head, &length, 4);
    Request request = pair->receives.front();
    if (length > request.length) {
      violation("a message is longer than the receive posted for it", 0);
      return fail(pair, IBV_WC_LOC_LEN_ERR);
    }
    copy_out(box, head + 4, request.data, length);
    box->head.store(head + 4 + length, std::memory_order_release);
    pair->receives.pop_front();
    complete(pair, request, IBV_WC_RECV, IBV_WC_SUCCESS);
  }
}

void progress(Pair* pair) {  // with the lock of its queue
  if (pair->qp.state == IBV_QPS_ERR) return flush(pair);
  Faults* faults = pair->context->device->faults;
  if (pair->qp.state != IBV_QPS_RTS || faults->cut.load(std::memory_order_relaxed)) return;
  if (faults->fail_next.load(std::memory_order_relaxed) && !(pair->sends.empty() && pair->receives.empty()))
    if (uint32_t status = faults->fail_next.exchange(0)) return fail(pair, status);
  send_what_fits(pair);
  receive_what_came(pair);
}

// Adds the requests of a chain to `queue`; `least` is the first state in which that is allowed.
template <typename Posted>
int post(Pair* pair, Posted* request, Posted** bad, std::deque<Request>& queue, uint32_t room, ibv_qp_state least) {
  for (; request; request = request->next) {
    *bad = request;
    ibv_qp_state state = pair->qp.state;
    if (state < least || (state == IBV_QPS_ERR && !flushes())) return EINVAL;
    if (queue.size() >= room) return violation("more work requests than the queue pair was made for", ENOMEM);
    if (request->num_sge != 1 || !is_registered(pair, request->sg_list[0]))
      return violation("a work request with memory that is not registered", EINVAL);
    auto& entry = request->sg_list[0];
    queue.push_back({request->wr_id, reinterpret_cast<char*>(entry.addr), entry.length});
  }
  return 0;
}

}  // namespace

void flush(Pair* pair) {
  static const bool late = setting("LAB_RDMA_ERR", "flush") == "late";
  if (!flushes() || (late && pair->polls_in_error++ < LATE)) return;
  for (auto& request : pair->sends) complete(pair, request, IBV_WC_SEND, IBV_WC_WR_FLUSH_ERR);
  for (auto& request : pair->receives) complete(pair, request, IBV_WC_RECV, IBV_WC_WR_FLUSH_ERR);
  pair->sends.clear();
  pair->receives.clear();
}

int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
  auto* pair = as<Pair>(qp);
  std::lock_guard guard(pair->queue->lock);
  int code = post(pair, request, bad, pair->sends, pair->max_sends, IBV_QPS_RTS);
  if (!code) progress(pair);
  return code;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) {
  auto* pair = as<Pair>(qp);
  std::lock_guard guard(pair->queue->lock);
  return post(pair, request, bad, pair->receives, pair->max_receives, IBV_QPS_INIT);
}

int poll_cq(ibv_cq* cq, int room, ibv_wc* completions) {
  auto* queue = as<Queue>(cq);
  int given = 0;
  {
    std::lock_guard guard(queue->lock);
    for (auto* pair : queue->pairs) progress(pair);
    for (; given < room && !queue->completions.empty(); queue->completions.pop_front())
      completions[given++] = queue->completions.front();
    queue->idle = given ? 0 : queue->idle + 1;
  }
  if (queue->idle > SLEEP_AFTER) {
    timespec nap{0, 50'000};
    nanosleep(&nap, nullptr);
  } else if (queue->idle > YIELD_AFTER) {
    sched_yield();
  }
  return given;
}

}  // namespace lab
