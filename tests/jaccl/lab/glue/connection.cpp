// The parts of MLX's rdma.h that its headers only declare: the table of verbs, buffers, and connections.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <stdexcept>

#include "groups.h"

namespace jaccl {
namespace {

constexpr int PORT = 1, IPV4 = 1, QUEUE_ENTRIES = 64;

[[noreturn]] void failed(const std::string& what, int code = errno) {
  throw std::runtime_error("[jaccl] " + what + " failed with error " + std::to_string(code));
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

void modify(ibv_qp* pair, ibv_qp_attr attributes, int mask, const char* state) {
  if (int code = ibv().modify_qp(pair, &attributes, mask | IBV_QP_STATE)) failed(std::string("Changing to ") + state, code);
}

}  // namespace

// Local, unlike in MLX: on Linux, Open MPI's libraries would take these verbs for those of libibverbs, which macOS keeps apart.
IBVWrapper::IBVWrapper() : librdma_handle_(dlopen(std::getenv("LAB_RDMA_LIBRARY"), RTLD_NOW | RTLD_LOCAL)) {
  if (!librdma_handle_) return;
  find(librdma_handle_, "ibv_get_device_list", get_device_list);
  find(librdma_handle_, "ibv_get_device_name", get_device_name);
  find(librdma_handle_, "ibv_open_device", open_device);
  find(librdma_handle_, "ibv_free_device_list", free_device_list);
  find(librdma_handle_, "ibv_close_device", close_device);
  find(librdma_handle_, "ibv_alloc_pd", alloc_pd);
  find(librdma_handle_, "ibv_create_qp", create_qp);
  find(librdma_handle_, "ibv_create_cq", create_cq);
  find(librdma_handle_, "ibv_destroy_cq", destroy_cq);
  find(librdma_handle_, "ibv_destroy_qp", destroy_qp);
  find(librdma_handle_, "ibv_dealloc_pd", dealloc_pd);
  find(librdma_handle_, "ibv_query_port", query_port);
  find(librdma_handle_, "ibv_query_gid", query_gid);
  find(librdma_handle_, "ibv_modify_qp", modify_qp);
  find(librdma_handle_, "ibv_reg_mr", reg_mr);
  find(librdma_handle_, "ibv_dereg_mr", dereg_mr);
}

// In writable memory of this library, as in the one of MLX on macOS. LAB_TABLE makes it one that is not known: `twice`, or
// with an entry that is `other` than the library's function.
static IBVWrapper table, second{table};

static bool unusual = [] {
  std::string kind = std::getenv("LAB_TABLE") ? std::getenv("LAB_TABLE") : "";
  if (kind != "twice") memset(static_cast<void*>(&second), 0, sizeof second);
  if (kind == "other") table.free_device_list = [](ibv_device** list) { delete[] list; };
  return true;
}();

IBVWrapper& ibv() { return table; }

SharedBuffer::SharedBuffer(size_t bytes) : data_(nullptr), num_bytes_(bytes) {
  if (posix_memalign(&data_, FRAME_SIZE, bytes)) failed("Allocating a buffer");
}

SharedBuffer::SharedBuffer(SharedBuffer&& other)
    : data_(std::exchange(other.data_, nullptr)),
      num_bytes_(other.num_bytes_),
      memory_regions_(std::exchange(other.memory_regions_, {})) {}

SharedBuffer::~SharedBuffer() {
  for (auto& [domain, region] : memory_regions_) ibv().dereg_mr(region);
  free(data_);
}

void SharedBuffer::register_to_protection_domain(ibv_pd* domain) {
  auto* region = ibv().reg_mr(domain, data_, num_bytes_, IBV_ACCESS_LOCAL_WRITE);
  if (!region) failed("Registering memory");
  memory_regions_[domain] = region;
}

Connection::Connection(ibv_context* opened)
    : ctx(opened), protection_domain(nullptr), completion_queue(nullptr), queue_pair(nullptr), src() {}

Connection::Connection(Connection&& other)
    : ctx(std::exchange(other.ctx, nullptr)),
      protection_domain(std::exchange(other.protection_domain, nullptr)),
      completion_queue(std::exchange(other.completion_queue, nullptr)),
      queue_pair(std::exchange(other.queue_pair, nullptr)),
      src(other.src) {}

Connection::~Connection() {
  if (queue_pair) ibv().destroy_qp(queue_pair);
  if (completion_queue) ibv().destroy_cq(completion_queue);
  if (protection_domain) ibv().dealloc_pd(protection_domain);
  if (ctx) ibv().close_device(ctx);
}

void Connection::allocate_protection_domain() {
  if (!(protection_domain = ibv().alloc_pd(ctx))) failed("Allocating a protection domain");
}

void Connection::create_completion_queue(int entries) {
  if (!(completion_queue = ibv().create_cq(ctx, entries, nullptr, nullptr, 0))) failed("Making a completion queue");
}

void Connection::create_queue_pair() {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completion_queue;
  wanted.cap.max_send_wr = MAX_SEND_WR;
  wanted.cap.max_recv_wr = MAX_RECV_WR;
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  wanted.qp_type = IBV_QPT_UC;
  if (!(queue_pair = ibv().create_qp(protection_domain, &wanted))) failed("Making a queue pair");
}

const Destination& Connection::info() {
  src.queue_pair_number = queue_pair->qp_num;
  src.packet_sequence_number = std::random_device()() & 0xffffff;
  if (int code = ibv().query_gid(ctx, PORT, IPV4, &src.global_identifier)) failed("Asking for the address", code);
  return src;
}

void Connection::queue_pair_init() {
  ibv_qp_attr wanted{};
  wanted.qp_state = IBV_QPS_INIT;
  wanted.port_num = PORT;
  wanted.qp_access_flags = IBV_ACCESS_LOCAL_WRITE;
  modify(queue_pair, wanted, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
}

void Connection::queue_pair_rtr(const Destination& to) {
  ibv_qp_attr wanted{};
  wanted.qp_state = IBV_QPS_RTR;
  wanted.path_mtu = IBV_MTU_4096;
  wanted.dest_qp_num = to.queue_pair_number;
  wanted.rq_psn = to.packet_sequence_number;
  wanted.ah_attr.is_global = 1;
  wanted.ah_attr.port_num = PORT;
  wanted.ah_attr.grh.dgid = to.global_identifier;
  wanted.ah_attr.grh.sgid_index = IPV4;
  wanted.ah_attr.grh.hop_limit = 1;
  modify(queue_pair, wanted, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, "RTR");
}

void Connection::queue_pair_rts() {
  ibv_qp_attr wanted{};
  wanted.qp_state = IBV_QPS_RTS;
  wanted.sq_psn = src.packet_sequence_number;
  modify(queue_pair, wanted, IBV_QP_SQ_PSN, "RTS");
}

}  // namespace jaccl

namespace lab {
namespace {

ibv_context* opened(const std::string& name) {
  int count = 0;
  auto** devices = jaccl::ibv().get_device_list(&count);
  ibv_context* context = nullptr;
  for (int i = 0; i < count && !context; i++)
    if (jaccl::ibv().get_device_name(devices[i]) == name) context = jaccl::ibv().open_device(devices[i]);
  jaccl::ibv().free_device_list(devices);
  if (!context) throw std::runtime_error("[jaccl] Could not open " + name);
  return context;
}

}  // namespace

std::vector<jaccl::Connection> open_connections(const std::vector<std::string>& devices) {
  std::vector<jaccl::Connection> connections;
  for (auto& name : devices) connections.emplace_back(name.empty() ? nullptr : opened(name));
  for (auto& each : connections) {
    if (!each.ctx) continue;
    each.allocate_protection_domain();
    each.create_completion_queue(jaccl::QUEUE_ENTRIES);
    each.create_queue_pair();
    each.queue_pair_init();
  }
  return connections;
}

std::vector<jaccl::Destination> described(std::vector<jaccl::Connection>& connections) {
  std::vector<jaccl::Destination> all;
  for (auto& each : connections) all.push_back(each.ctx ? each.info() : jaccl::Destination{});
  return all;
}

void connect(std::vector<jaccl::Connection>& connections, const std::vector<jaccl::Destination>& theirs) {
  for (size_t i = 0; i < connections.size(); i++)
    if (connections[i].ctx) connections[i].queue_pair_rtr(theirs[i]);
  for (auto& each : connections)
    if (each.ctx) each.queue_pair_rts();
}

}  // namespace lab
