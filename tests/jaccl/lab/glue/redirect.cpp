// Has the libmlx of this process, whose wheel comes without JACCL on Linux, call the lab's.
//
// Its three stubs are found in its own symbol table, and each begins with a jump from then on.
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>

#include "adapter.h"

namespace {

constexpr const char* AVAILABLE = "_ZN3mlx4core11distributed5jaccl12is_availableEv";
constexpr const char* INIT = "_ZN3mlx4core11distributed5jaccl4initEb";
constexpr const char* INIT_WITH_GATHER = "_ZN3mlx4core11distributed5jaccl4initEbSt8functionIFS3_IFvPKcPcmEEiiEE";

struct Library {
  std::string path;
  uintptr_t base = 0;
};

int find_libmlx(dl_phdr_info* info, size_t, void* found) {
  std::string path = info->dlpi_name ? info->dlpi_name : "";
  if (!path.ends_with("/libmlx.so")) return 0;
  *static_cast<Library*>(found) = {path, info->dlpi_addr};
  return 1;
}

std::map<std::string, uintptr_t> functions(const Library& library) {
  std::map<std::string, uintptr_t> found;
  int file = open(library.path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (file < 0 || fstat(file, &status)) return found;
  void* mapped = mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return found;
  auto* start = static_cast<char*>(mapped);
  auto* header = reinterpret_cast<Elf64_Ehdr*>(start);
  auto* sections = reinterpret_cast<Elf64_Shdr*>(start + header->e_shoff);
  for (int i = 0; i < header->e_shnum; i++) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    auto* symbols = reinterpret_cast<Elf64_Sym*>(start + sections[i].sh_offset);
    auto* names = start + sections[sections[i].sh_link].sh_offset;
    for (size_t k = 0; k < sections[i].sh_size / sizeof(Elf64_Sym); k++)
      if (symbols[k].st_shndx && ELF64_ST_TYPE(symbols[k].st_info) == STT_FUNC)
        found[names + symbols[k].st_name] = library.base + symbols[k].st_value;
  }
  munmap(mapped, status.st_size);
  return found;
}

bool redirect(uintptr_t from, const void* to) {
  unsigned char jump[14] = {0xff, 0x25, 0, 0, 0, 0};  // jmp *0(%rip), and the address
  memcpy(jump + 6, &to, sizeof to);
  auto* page = reinterpret_cast<void*>(from & ~uintptr_t{4095});
  if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) return false;
  memcpy(reinterpret_cast<void*>(from), jump, sizeof jump);
  return mprotect(page, 8192, PROT_READ | PROT_EXEC) == 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int jaccl_lab_install() {
  Library library;
  dl_iterate_phdr(find_libmlx, &library);
  auto found = functions(library);
  for (auto* name : {AVAILABLE, INIT, INIT_WITH_GATHER})
    if (!found.count(name)) return 1;
  bool done = redirect(found[AVAILABLE], reinterpret_cast<void*>(lab::is_available)) &&
      redirect(found[INIT], reinterpret_cast<void*>(lab::init)) &&
      redirect(found[INIT_WITH_GATHER], reinterpret_cast<void*>(lab::init_with_gather));
  return done ? 0 : 2;
}
