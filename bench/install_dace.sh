# Installs the versions of DaCe that the scripts beside this one run, each with a CMake, where they are not there yet:
# install_dace FOLDER VERSION…, with v1 for 1.0.2 and v2 for 2.0. To be sourced.
install_dace() {
    local out=$1 version
    shift
    for version in "$@"; do
        [ -x "$out/$version/bin/cmake" ] && continue
        echo "installing DaCe into $out/$version"
        python3 -m venv --clear "$out/$version"
        # 1.0.2 does not run with newer versions of networkx (findings/).
        case $version in
            v1) "$out/$version/bin/pip" install -q --no-cache-dir dace==1.0.2 networkx==3.4.2 setuptools cmake ;;
            *) "$out/$version/bin/pip" install -q --no-cache-dir dace==2.0.0b1 cmake ;;
        esac
    done
}
