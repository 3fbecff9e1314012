# libdlfp4, and what installs it. In the Python package all of this lies below dlfp4/, in the same folders.

# Symbols have versions: those of the header that of the interface, which changes with the minor version until 1.0. What
# the extension calls besides has the whole version, so that no other build's library can be loaded in its place.
string(REGEX MATCHALL "DLFP4_API [^(;]*dlfp4_[a-z0-9_]+\\(" exports "${DLFP4_HEADER}")
list(TRANSFORM exports REPLACE ".*(dlfp4_[a-z0-9_]+)\\($" "\\1")
file(STRINGS src/api/tvm_ffi.cpp of_tvm_ffi REGEX "^DLFP4_TVM_FFI_SYMBOL")
list(TRANSFORM of_tvm_ffi REPLACE ".*\\((.+)\\)" "__tvm_ffi_\\1")
list(APPEND exports ${of_tvm_ffi})
list(JOIN exports ";\n    " DLFP4_EXPORTS)
set(DLFP4_INTERFACE ${dlfp4_VERSION_MAJOR}.${dlfp4_VERSION_MINOR})
configure_file(cmake/exports.map.in exports.map @ONLY)

include(GNUInstallDirs)
if(DLFP4_BUILD_PYTHON)
  set(root dlfp4/)
  set(lib dlfp4/lib)
  set(include dlfp4/include)
  set(namelink NAMELINK_SKIP)
else()
  set(root "")
  set(lib ${CMAKE_INSTALL_LIBDIR})
  set(include ${CMAKE_INSTALL_INCLUDEDIR})
  set(namelink "")
endif()

add_library(dlfp4 SHARED $<TARGET_OBJECTS:dlfp4_kernels>)
set_target_properties(dlfp4 PROPERTIES VERSION ${DLFP4_INTERFACE} SOVERSION ${DLFP4_INTERFACE} LINKER_LANGUAGE CXX
                      DLL_NAME_WITH_SOVERSION ON)
target_link_libraries(dlfp4 PUBLIC dlfp4_headers PRIVATE ${CMAKE_DL_LIBS})
# OpenMP's threads wait in code that goes with the library, so what holds the kernels stays when it is closed.
set(DLFP4_STAYS "")
if(DLFP4_ELF)
  set(DLFP4_STAYS -Wl,-z,nodelete)
endif()
target_link_options(dlfp4 PRIVATE ${DLFP4_HARDENED_LINKS} ${DLFP4_STAYS})
if(DLFP4_ELF)
  target_link_options(dlfp4 PRIVATE
    -Wl,--version-script,${CMAKE_CURRENT_BINARY_DIR}/exports.map -Wl,-Bsymbolic-functions)
  set_target_properties(dlfp4 PROPERTIES LINK_DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/exports.map)
elseif(WIN32)
  list(JOIN exports "\n" names)
  file(CONFIGURE OUTPUT exports.def CONTENT "EXPORTS\n${names}\n")
  target_sources(dlfp4 PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/exports.def)
endif()

add_library(dlfp4_headers INTERFACE)
set_target_properties(dlfp4_headers PROPERTIES EXPORT_NAME dlpack)
target_include_directories(dlfp4_headers INTERFACE
  $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${include}>)

set(libraries dlfp4)
if(DLFP4_BUILD_STATIC)
  add_library(dlfp4_static STATIC $<TARGET_OBJECTS:dlfp4_kernels>)
  set_target_properties(dlfp4_static PROPERTIES LINKER_LANGUAGE CXX)
  if(NOT CMAKE_STATIC_LIBRARY_SUFFIX STREQUAL CMAKE_IMPORT_LIBRARY_SUFFIX)  # else it would replace the DLL's
    set_target_properties(dlfp4_static PROPERTIES OUTPUT_NAME dlfp4)
  endif()
  target_link_libraries(dlfp4_static PUBLIC dlfp4_headers PRIVATE ${CMAKE_DL_LIBS})
  target_link_options(dlfp4_static INTERFACE ${DLFP4_STAYS})
  list(APPEND libraries dlfp4_static)
endif()
if(OpenMP_CXX_FOUND)
  # By its flag: where others link the installed archive, CMake need not have looked for OpenMP.
  foreach(library ${libraries})
    target_link_libraries(${library} PRIVATE
      $<BUILD_INTERFACE:OpenMP::OpenMP_CXX> $<INSTALL_INTERFACE:${OpenMP_CXX_FLAGS}>)
  endforeach()
endif()

# By the names that find_package gives, for projects that take the sources in.
add_library(dlfp4::dlpack ALIAS dlfp4_headers)
add_library(dlfp4::dlfp4 ALIAS dlfp4)
if(DLFP4_BUILD_STATIC)
  add_library(dlfp4::dlfp4_static ALIAS dlfp4_static)
endif()

if(NOT DLFP4_INSTALL)
  return()
endif()
include(CMakePackageConfigHelpers)
install(TARGETS dlfp4 dlfp4_headers EXPORT dlfp4Targets
        LIBRARY DESTINATION ${lib} ${namelink}
        ARCHIVE DESTINATION ${lib} RUNTIME DESTINATION ${root}${CMAKE_INSTALL_BINDIR})  # of Windows
if(DLFP4_BUILD_PYTHON)
  # A wheel holds no links: the linker finds the library by a script.
  file(CONFIGURE OUTPUT script/libdlfp4.so CONTENT "INPUT(libdlfp4.so.${DLFP4_INTERFACE})\n")
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/script/libdlfp4.so DESTINATION ${lib})
endif()
install(EXPORT dlfp4Targets NAMESPACE dlfp4:: DESTINATION ${lib}/cmake/dlfp4)
if(DLFP4_BUILD_STATIC)
  install(TARGETS dlfp4_static EXPORT dlfp4StaticTargets ARCHIVE DESTINATION ${lib})
  install(EXPORT dlfp4StaticTargets NAMESPACE dlfp4:: DESTINATION ${lib}/cmake/dlfp4)
endif()
install(DIRECTORY include/dlfp4 DESTINATION ${include} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
configure_file(cmake/dlfp4Config.cmake.in dlfp4Config.cmake @ONLY)
write_basic_package_version_file(dlfp4ConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/dlfp4Config.cmake ${CMAKE_CURRENT_BINARY_DIR}/dlfp4ConfigVersion.cmake
        DESTINATION ${lib}/cmake/dlfp4)
if(NOT DLFP4_BUILD_PYTHON) # wheels have them among what describes the package
  install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/licenses/dlfp4)
endif()
# Folders by where the file itself lies, so that what was installed can be moved.
file(RELATIVE_PATH up /${lib}/pkgconfig /${root})
file(RELATIVE_PATH include_of_prefix /${root} /${include})
file(RELATIVE_PATH lib_of_prefix /${root} /${lib})
configure_file(cmake/dlfp4.pc.in dlfp4.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/dlfp4.pc DESTINATION ${lib}/pkgconfig)
