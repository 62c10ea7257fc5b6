// Addresses, and the states through which a queue pair goes until it is connected.
#include <arpa/inet.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "verbs.h"

using namespace lab;

namespace {

constexpr int IPV4 = 1;  // index of the GID that has the IPv4 address of the port, as on macOS

std::string dotted(const ibv_gid& gid) {
  char text[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, gid.raw + 12, text, sizeof text);
  return text;
}

int to_init(ibv_qp_state from, const ibv_qp_attr* wanted, int mask) {
  bool known = from == IBV_QPS_RESET || from == IBV_QPS_INIT;
  return known && (mask & IBV_QP_PORT) && wanted->port_num == 1 ? 0 : EINVAL;
}

int to_receive(Pair* pair, ibv_qp_state from, const ibv_qp_attr* wanted, int mask) {
  if (from != IBV_QPS_INIT || !(mask & IBV_QP_AV) || !(mask & IBV_QP_DEST_QPN)) return EINVAL;
  if (!wanted->ah_attr.is_global || wanted->ah_attr.grh.sgid_index != IPV4) return EINVAL;
  auto number = std::to_string(wanted->dest_qp_num);
  pair->target = in_folder("pair-" + dotted(wanted->ah_attr.grh.dgid) + "-" + number);
  return pair->context->device->faults->cut ? ETIMEDOUT : 0;
}

}  // namespace

VERB(int, query_port, ibv_context* opened, uint8_t port, ibv_port_attr* found) {
  if (port != 1) return EINVAL;
  memset(found, 0, sizeof *found);
  found->state = as<Context>(opened)->device->faults->cut ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
  found->active_mtu = found->max_mtu = IBV_MTU_4096;
  found->gid_tbl_len = 2;
  found->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

VERB(int, query_gid, ibv_context* opened, uint8_t port, int index, ibv_gid* gid) {
  if (port != 1 || index < 0 || index > IPV4) return EINVAL;
  memset(gid, 0, sizeof *gid);
  if (index != IPV4) {
    gid->raw[0] = 0xfe, gid->raw[1] = 0x80, gid->raw[15] = 1;  // link-local
    return 0;
  }
  gid->raw[10] = gid->raw[11] = 0xff;
  return inet_pton(AF_INET, as<Context>(opened)->device->address.c_str(), gid->raw + 12) == 1 ? 0 : ENODATA;
}

VERB(int, query_qp, ibv_qp* qp, ibv_qp_attr* found, int, ibv_qp_init_attr*) {
  auto* pair = as<Pair>(qp);
  std::lock_guard guard(pair->queue->lock);
  found->qp_state = qp->state;
  return 0;
}

VERB(int, modify_qp, ibv_qp* qp, ibv_qp_attr* wanted, int mask) {
  auto* pair = as<Pair>(qp);
  std::lock_guard guard(pair->queue->lock);
  if (!(mask & IBV_QP_STATE)) return EINVAL;
  int code = 0;
  switch (wanted->qp_state) {
    case IBV_QPS_RESET:
      pair->sends.clear();
      pair->receives.clear();
      break;
    case IBV_QPS_INIT:
      code = to_init(qp->state, wanted, mask);
      break;
    case IBV_QPS_RTR:
      code = to_receive(pair, qp->state, wanted, mask);
      break;
    case IBV_QPS_RTS:
      code = qp->state == IBV_QPS_RTR ? 0 : EINVAL;
      if (!code) pair->inbox->ready.store(1, std::memory_order_release);
      break;
    case IBV_QPS_ERR:
      while (setting("LAB_RDMA_ERR", "flush") == "hang") pause();
      if (setting("LAB_RDMA_ERR", "flush") == "crash") raise(SIGSEGV);
      break;
    default:
      code = EINVAL;
  }
  if (code) return code;
  qp->state = wanted->qp_state;
  if (qp->state == IBV_QPS_ERR) flush(pair);
  return 0;
}
