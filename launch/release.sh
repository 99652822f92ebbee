#!/usr/bin/env bash
# release.sh [TAG]: build the sdist and the wheel into dist/, and run the quick test in an empty environment.
# With TAG, such as v0.2.0, also check that it is the tag of this version. A maintainer makes the tag.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "release: $*" >&2; exit 1; }
run() { printf '+ %s\n' "$*"; "$@"; }

python=$PWD/.venv/bin/python
version=$("$python" -c 'from commlib.version import __version__; print(__version__)')
tag=${1:-v$version}
[ "$tag" = "v$version" ] || fail "the tag is $tag, but this is commlib $version"
grep -q "^## $version - " CHANGELOG.md || fail "CHANGELOG.md has no section of $version"

rm -rf dist build/release
mkdir -p dist build/release/elsewhere
echo "+ sdist of $version"
PATH=$PWD/.venv/bin:$PATH "$python" -c 'from scikit_build_core.build import build_sdist; build_sdist("dist")' >/dev/null
# From the sdist, so that a file it lacks is noticed; with the tools of .venv.
PATH=$PWD/.venv/bin:$PATH run "$python" -m pip wheel --quiet --no-deps --no-build-isolation -w dist dist/*.tar.gz

torch=$("$python" -c 'from importlib.metadata import version; print(version("torch"))')
run "$python" -m venv build/release/env
pip=(build/release/env/bin/python -m pip --disable-pip-version-check install --quiet)
run "${pip[@]}" --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu "torch==$torch"
run "${pip[@]}" dist/*.whl
bin=$PWD/build/release/env/bin
(cd build/release/elsewhere && run "$bin/commlib" --version && run "$bin/commlib" test --quick)
ls -l dist
echo "release: commlib $version passes; next, by a maintainer: git tag -a $tag && git push origin $tag"
