#!/usr/bin/env bash
# A Python of Debian for aarch64, to build wheels for and to run in an emulator: `aarch64.sh FOLDER` puts it into
# FOLDER/root, and its headers into FOLDER/headers. Nothing is installed on the machine, and its package lists stay as
# they are; its sources of packages serve.
set -euo pipefail
folder=$(realpath "$1")
rm -rf "$folder/apt" "$folder/root" "$folder/headers"
mkdir -p "$folder"/apt/state/lists/partial "$folder"/apt/cache/archives/partial "$folder/root" "$folder/headers"
: > "$folder/apt/state/status"
options=(-q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o "Dir::State=$folder/apt/state"
         -o "Dir::State::status=$folder/apt/state/status" -o "Dir::Cache=$folder/apt/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
apt-get "${options[@]}" --yes --download-only --no-install-recommends install \
  python3.11 libpython3.11-dev libstdc++6 libgomp1
for package in "$folder"/apt/cache/archives/*.deb; do
  dpkg -x "$package" "$folder/root"
done
# Apart from the C library's headers, which the cross compiler brings: Debian's pyconfig.h includes one by machine.
cp -r "$folder"/root/usr/include/python3.11 "$folder/headers"
mkdir "$folder/headers/aarch64-linux-gnu"
cp -r "$folder"/root/usr/include/aarch64-linux-gnu/python3.11 "$folder/headers/aarch64-linux-gnu"
