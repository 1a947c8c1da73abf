"""The trusted part: where private records meet noise, after they were charged for. README.md has the argument."""
