"""Starts mini-sglang's server with its own options; `--cache-type commlib` also takes our prefix cache."""

from minisgl.server import launch

from commlib.engines import minisgl

if __name__ == "__main__":
    minisgl.install()  # for the options: --cache-type knows ours
    launch._run_scheduler = minisgl.run_scheduler  # what each rank's process runs
    launch.launch_server()
