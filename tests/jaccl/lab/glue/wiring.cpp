// What the environment says of the world, in the variables that MLX documents.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "groups.h"

namespace lab {

Wiring read_wiring() {
  const char *rank = std::getenv("MLX_RANK"), *file = std::getenv("MLX_IBV_DEVICES"),
             *coordinator = std::getenv("MLX_JACCL_COORDINATOR");
  if (!rank || !file || !coordinator) throw std::runtime_error("[jaccl] MLX_RANK, MLX_IBV_DEVICES or MLX_JACCL_COORDINATOR is missing");
  std::ifstream stream(file);
  auto rows = nlohmann::json::parse(stream);
  Wiring wiring{std::stoi(rank), static_cast<int>(rows.size()), coordinator, std::getenv("MLX_JACCL_RING") != nullptr, {}, SIZE_MAX};
  for (auto& row : rows)
    for (auto& entry : row)
      if (!entry.is_null()) wiring.wires = std::min(wiring.wires, entry.is_string() ? 1 : entry.size());
  for (auto& entry : rows.at(wiring.rank)) {
    if (entry.is_null()) wiring.devices.emplace_back();
    else if (entry.is_string()) wiring.devices.push_back({entry.get<std::string>()});
    else wiring.devices.push_back(entry.get<std::vector<std::string>>());
  }
  return wiring;
}

}  // namespace lab
