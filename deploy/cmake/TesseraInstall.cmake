# cmake --install: the two programs, the bundled model where tessera-server looks for it (../share/tessera/model seen
# from the program), the licence and the .proto files for clients.
include(GNUInstallDirs)
foreach(target tessera_server tessera_cli)
  if(TARGET ${target})
    install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
if(EXISTS ${PROJECT_SOURCE_DIR}/deploy/model/config.json)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/deploy/model/ DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/model
          FILES_MATCHING PATTERN "*.json" PATTERN "*.safetensors" PATTERN "*.jinja" PATTERN "README.md" PATTERN "LICENSES/*"
          PATTERN "training" EXCLUDE)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/proto/tessera DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/proto
        FILES_MATCHING PATTERN "*.proto")
