// The side channel: rank 0 listens, the others connect, and bytes are gathered at rank 0 and sent to all.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#include "groups.h"

namespace jaccl {

SideChannel::SideChannel(int rank, int size, AllGatherFn gather) : rank_(rank), size_(size), all_gather_fn_(std::move(gather)) {}
SideChannel::SideChannel(SideChannel&&) = default;

}  // namespace jaccl

namespace lab {
namespace {

[[noreturn]] void failed(const char* what) {
  throw std::runtime_error(std::string("[jaccl] ") + what + " failed (error: " + std::to_string(errno) + ")");
}

class Socket {
 public:
  explicit Socket(int number) : number_(number) {}
  Socket(Socket&& other) : number_(std::exchange(other.number_, -1)) {}
  Socket& operator=(Socket&& other) {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Socket() {
    if (number_ >= 0) close(number_);
  }
  operator int() const { return number_; }

  void send(const char* data, size_t size) const {
    for (ssize_t done; size; data += done, size -= done)
      if ((done = ::send(number_, data, size, MSG_NOSIGNAL)) <= 0) failed("Send");
  }
  void receive(char* data, size_t size) const {
    for (ssize_t done; size; data += done, size -= done)
      if ((done = recv(number_, data, size, 0)) <= 0) failed("Receive");
  }

 private:
  int number_;
};

sockaddr_in parsed(const std::string& address) {
  auto colon = address.rfind(':');
  sockaddr_in parsed{};
  parsed.sin_family = AF_INET;
  parsed.sin_port = htons(std::stoi(address.substr(colon + 1)));
  if (inet_pton(AF_INET, address.substr(0, colon).c_str(), &parsed.sin_addr) != 1) failed("Parsing the address");
  return parsed;
}

Socket opened() {
  Socket made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int on = 1;
  setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return made;
}

std::vector<Socket> accept_all(int size, const sockaddr_in& address) {
  Socket listener = opened();
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address)) failed("Bind");
  if (listen(listener, size)) failed("Listen");
  std::vector<Socket> peers;
  for (int i = 0; i < size; i++) peers.emplace_back(-1);
  for (int i = 1; i < size; i++) {
    Socket peer(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (peer < 0) failed("Accept");
    int rank;
    peer.receive(reinterpret_cast<char*>(&rank), sizeof rank);
    peers.at(rank) = std::move(peer);
  }
  return peers;
}

Socket connected(const sockaddr_in& address) {
  for (int wait = 1; wait <= 8; wait *= 2) {  // as long as MLX tries, and like it without a pause for signals
    Socket made = opened();
    if (!connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof address)) return made;
    close(creat((std::string(std::getenv("LAB_RDMA_DIR")) + "/refused-" + std::to_string(getpid())).c_str(), 0600));
    for (unsigned left = wait; left;) left = sleep(left);
  }
  failed("Connect");
}

}  // namespace

jaccl::SideChannel connect_side_channel(const Wiring& wiring) {
  auto peers = std::make_shared<std::vector<Socket>>();
  int rank = wiring.rank, size = wiring.size;
  if (rank == 0) {
    *peers = accept_all(size, parsed(wiring.coordinator));
  } else {
    peers->push_back(connected(parsed(wiring.coordinator)));
    peers->front().send(reinterpret_cast<const char*>(&rank), sizeof rank);
  }
  return jaccl::SideChannel(rank, size, [=](const char* mine, char* all, size_t bytes) {
    if (rank) {
      peers->front().send(mine, bytes);
      peers->front().receive(all, bytes * size);
      return;
    }
    std::memcpy(all, mine, bytes);
    for (int peer = 1; peer < size; peer++) peers->at(peer).receive(all + peer * bytes, bytes);
    for (int peer = 1; peer < size; peer++) peers->at(peer).send(all, bytes * size);
  });
}

}  // namespace lab
