// Devices, contexts, protection domains, memory regions, completion queues and queue pairs, each counted until freed.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>

#include "verbs.h"

using namespace lab;

namespace {

std::mutex resources;
std::map<uint32_t, Region*> regions;

std::vector<Device*>& devices() {
  static auto& all = *new std::vector<Device*>([] {  // also when the process ends
    std::vector<Device*> found;
    std::istringstream list(setting("LAB_RDMA_DEVICES", ""));
    for (std::string item; std::getline(list, item, ',');) {
      auto* device = new Device;
      device->name = item.substr(0, item.find('='));
      device->address = item.substr(item.find('=') + 1);
      snprintf(device->device.name, sizeof device->device.name, "%s", device->name.c_str());
      found.push_back(device);
    }
    return found;
  }());
  return all;
}

// Whether one more is there; what others hold counts where the device keeps what it should not.
bool take(Device* device, Kind kind) {
  static const char* const names[] = {"LAB_RDMA_MAX_QP", "LAB_RDMA_MAX_MR", "LAB_RDMA_MAX_PD", "LAB_RDMA_MAX_CQ"};
  static const char* const limits[] = {"10", "100", "64", "64"};
  bool keeps = setting("LAB_RDMA_KEEPS", "nothing") != "nothing";
  if ((keeps ? device->faults->kept[kind].load() : device->made[kind]) >= std::stoi(setting(names[kind], limits[kind])))
    return false;
  device->made[kind]++;
  if (keeps) device->faults->kept[kind]++;
  return true;
}

void give_back(Device* device, Kind kind) {
  device->made[kind]--;
  if (setting("LAB_RDMA_KEEPS", "nothing") != "nothing") device->faults->kept[kind]--;
}

// A process that ends in order comes here; one that is killed does not.
__attribute__((destructor)) void ended() {
  if (setting("LAB_RDMA_KEEPS", "nothing") != "killed") return;
  for (auto* device : devices())
    for (int kind = 0; device->faults && kind < 4; kind++) device->faults->kept[kind] -= device->made[kind];
}

int poll_cq_again(ibv_cq* cq, int room, ibv_wc* completions) { return poll_cq(cq, room, completions); }

template <typename T>
T* refused(int code) {
  errno = code;
  return nullptr;
}

}  // namespace

bool lab::is_registered(const Pair* pair, const ibv_sge& entry) {
  std::lock_guard guard(resources);
  auto found = regions.find(entry.lkey);
  if (found == regions.end() || found->second->domain != pair->domain) return false;
  auto start = reinterpret_cast<uintptr_t>(found->second->mr.addr);
  return entry.addr >= start && entry.addr + entry.length <= start + found->second->mr.length;
}

VERB(ibv_device**, get_device_list, int* count) {
  auto& all = devices();
  auto** list = new ibv_device*[all.size() + 1]();
  for (size_t i = 0; i < all.size(); i++) list[i] = &all[i]->device;
  if (count) *count = static_cast<int>(all.size());
  return list;
}

VERB(void, free_device_list, ibv_device** list) { delete[] list; }

VERB(const char*, get_device_name, ibv_device* device) { return device->name; }

VERB(ibv_context*, open_device, ibv_device* device) {
  std::lock_guard guard(resources);
  static bool opened = false;
  for (auto* each : devices()) {
    if (&each->device != device) continue;
    if (!each->faults) each->faults = map_file<Faults>(in_folder("dev-" + each->name), O_CREAT);
    if (!each->faults) return nullptr;
    if (each->shared) {
      each->shared->opened++;
      return &each->shared->context;
    }
    auto* made = new Context;
    made->device = each;
    made->context.device = device;
    made->context.num_comp_vectors = 1;
    made->context.ops.poll_cq = opened && setting("LAB_RDMA_CONTEXTS", "alike") == "differ" ? poll_cq_again : poll_cq;
    opened = true;
    made->context.ops.post_send = post_send;
    made->context.ops.post_recv = post_recv;
    if (setting("LAB_RDMA_LAYOUT", "known") == "other") {  // as if there were fewer functions before them
      auto** functions = reinterpret_cast<void**>(&made->context.ops);
      std::memmove(functions, functions + 3, sizeof made->context.ops - 3 * sizeof(void*));
    }
    if (setting("LAB_RDMA_CONTEXTS", "alike") == "shared") each->shared = made;
    if (setting("LAB_RDMA_CONTEXTS", "alike") == "fixed") mprotect(made, 4096, PROT_READ);
    held().contexts++;
    return &made->context;
  }
  return refused<ibv_context>(ENODEV);
}

VERB(int, close_device, ibv_context* opened) {
  std::lock_guard guard(resources);
  auto* context = as<Context>(opened);
  if (--context->opened) return 0;
  if (context->users) return violation("a device was closed with its domains or queues open", EBUSY);
  held().contexts--;
  context->device->shared = nullptr;
  mprotect(context, 4096, PROT_READ | PROT_WRITE);
  delete context;
  return 0;
}

VERB(ibv_pd*, alloc_pd, ibv_context* opened) {
  std::lock_guard guard(resources);
  auto* context = as<Context>(opened);
  if (context->device->faults->cut) return refused<ibv_pd>(ENODEV);  // as where the port is down
  if (!take(context->device, DOMAINS)) return refused<ibv_pd>(ENOMEM);
  auto* made = new Domain;
  made->pd.context = opened;
  made->context = context;
  context->users++;
  held().domains++;
  return &made->pd;
}

VERB(int, dealloc_pd, ibv_pd* pd) {
  std::lock_guard guard(resources);
  auto* domain = as<Domain>(pd);
  if (domain->users) return violation("a protection domain was freed with its regions or pairs", EBUSY);
  domain->context->users--;
  give_back(domain->context->device, DOMAINS);
  held().domains--;
  delete domain;
  return 0;
}

VERB(ibv_mr*, reg_mr, ibv_pd* pd, void* data, size_t length, int) {
  std::lock_guard guard(resources);
  static uint32_t key = 0;
  auto* domain = as<Domain>(pd);
  if (!take(domain->context->device, REGIONS)) return refused<ibv_mr>(ENOMEM);
  auto* made = new Region;
  made->domain = domain;
  made->mr = {pd->context, pd, data, length, 0, ++key, key};
  regions[key] = made;
  domain->users++;
  held().regions++;
  return &made->mr;
}

VERB(int, dereg_mr, ibv_mr* mr) {
  std::lock_guard guard(resources);
  auto* region = as<Region>(mr);
  regions.erase(mr->lkey);
  region->domain->users--;
  give_back(region->domain->context->device, REGIONS);
  held().regions--;
  delete region;
  return 0;
}

VERB(ibv_cq*, create_cq, ibv_context* opened, int, void*, ibv_comp_channel*, int) {
  std::lock_guard guard(resources);
  if (!take(as<Context>(opened)->device, QUEUES)) return refused<ibv_cq>(ENOMEM);
  auto* made = new Queue;
  made->cq.context = opened;
  made->context = as<Context>(opened);
  made->context->users++;
  held().queues++;
  return &made->cq;
}

VERB(int, destroy_cq, ibv_cq* cq) {
  std::lock_guard guard(resources);
  auto* queue = as<Queue>(cq);
  if (!queue->pairs.empty()) return violation("a completion queue was destroyed with its pairs", EBUSY);
  queue->context->users--;
  give_back(queue->context->device, QUEUES);
  held().queues--;
  delete queue;
  return 0;
}

VERB(ibv_qp*, create_qp, ibv_pd* pd, ibv_qp_init_attr* wanted) {
  std::lock_guard guard(resources);
  static uint32_t number = getpid() * 64;
  auto* domain = as<Domain>(pd);
  Device* device = domain->context->device;
  if (wanted->qp_type != IBV_QPT_UC || wanted->send_cq != wanted->recv_cq) return refused<ibv_qp>(EOPNOTSUPP);
  if (!take(device, PAIRS)) return refused<ibv_qp>(EBUSY);
  auto* made = new Pair;
  while (!made->inbox) {
    made->qp.qp_num = ++number & 0xffffff;
    made->file = in_folder("pair-" + device->address + "-" + std::to_string(made->qp.qp_num));
    made->inbox = map_file<Inbox>(made->file, O_CREAT | O_EXCL);
    if (!made->inbox && errno != EEXIST) {
      give_back(device, PAIRS);
      delete made;
      return nullptr;
    }
  }
  made->context = domain->context;
  made->domain = domain;
  made->queue = as<Queue>(wanted->send_cq);
  made->qp.context = pd->context;
  made->qp.pd = pd;
  made->qp.send_cq = made->qp.recv_cq = wanted->send_cq;
  made->qp.qp_type = IBV_QPT_UC;
  made->qp.state = IBV_QPS_RESET;
  made->max_sends = wanted->cap.max_send_wr;
  made->max_receives = wanted->cap.max_recv_wr;
  std::lock_guard of_queue(made->queue->lock);
  made->queue->pairs.push_back(made);
  domain->users++;
  held().pairs++;
  return &made->qp;
}

VERB(int, destroy_qp, ibv_qp* qp) {
  std::lock_guard guard(resources);
  auto* pair = as<Pair>(qp);
  {
    std::lock_guard of_queue(pair->queue->lock);
    auto& all = pair->queue->pairs;
    all.erase(std::remove(all.begin(), all.end(), pair), all.end());
  }
  munmap(pair->inbox, sizeof(Inbox));
  if (pair->outbox) munmap(pair->outbox, sizeof(Inbox));
  unlink(pair->file.c_str());  // the peer is not informed
  pair->domain->users--;
  give_back(pair->context->device, PAIRS);
  held().pairs--;
  delete pair;
  return 0;
}
