# What makes a fault harder to exploit, where it takes no time that could be measured. Kernels: return addresses on the
# stack are guarded, and copies of the C library checked. In the extension the one would take 15 % of a small cast, the
# other 10 ns of an import from NumPy. Both: on x86, jumps go to marked places alone; addresses of functions are resolved
# when the library is loaded, and read-only from then on.
set(DLFP4_HARDENED_KERNELS "")
set(DLFP4_HARDENED_EXTENSION "")
if(NOT "${CMAKE_C_FLAGS} ${CMAKE_CXX_FLAGS}" MATCHES "-fsanitize")  # sanitizers see more without
  set(DLFP4_HARDENED_KERNELS -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
  set(DLFP4_HARDENED_EXTENSION -fwrapv)  # no overflow is undefined in generated C
  check_cxx_compiler_flag(-fcf-protection DLFP4_COMPILES_CF_PROTECTION)
  if(DLFP4_COMPILES_CF_PROTECTION)
    list(APPEND DLFP4_HARDENED_KERNELS -fcf-protection)
    list(APPEND DLFP4_HARDENED_EXTENSION -fcf-protection)
  endif()
endif()
set(DLFP4_HARDENED_LINKS "")
if(DLFP4_ELF)
  set(DLFP4_HARDENED_LINKS -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
endif()
