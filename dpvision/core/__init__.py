"""The trusted part: where private records meet noise, and what is charged for it before. README.md has the argument."""
