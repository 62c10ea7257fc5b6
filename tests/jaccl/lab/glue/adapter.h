// What stands for the functions of MLX that the wheel for Linux has as stubs, with their signatures.
#pragma once

#include <memory>

#include "mlx/distributed/distributed.h"

namespace lab {

using Group = std::shared_ptr<mlx::core::distributed::detail::GroupImpl>;

bool is_available();
Group init(bool strict);
Group init_with_gather(bool strict, mlx::core::distributed::AllGatherFactory factory);

}  // namespace lab
