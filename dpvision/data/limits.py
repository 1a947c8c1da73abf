"""Limits on a source, so that a hostile file is refused before it costs memory or time."""

from __future__ import annotations

KIB, MIB, GIB = 2**10, 2**20, 2**30

TOTAL_BYTES = 16 * GIB
"""Maximum number of bytes that `load` puts into memory; `pack` is limited by the free disk space instead."""

EXPANSION_RATIO = 200
"""Maximum ratio of decompressed to compressed size. Photographs have 1.1 to 10, deflate can reach 1,032."""

EXPANSION_FREE = 64 * MIB
"""An archive below this size may have any ratio: small sets of near-constant images are legitimate."""

ZIP_MEMBERS = 64
ZIP_DIRECTORY_BYTES = 64 * KIB
NPY_HEADER_BYTES = 4 * KIB

PIXELS = 2**24
"""Maximum number of pixels of one image (4,096 x 4,096). Pillow needs up to 11 bytes for each during conversion."""

CACHE_FROM = 1_000
"""Number of files from which decoded images are stored in $DPVISION_HOME."""

CACHE_BYTES = 32 * GIB
"""Maximum size of all images that are stored there."""

PIXELS_AT_ONCE = 2**26
"""Pixels of all images that threads decode at the same time; each takes up to 11 bytes."""

IMAGE_FILE_BYTES = 64 * MIB
PNG_CHUNKS = 2**16

JPEG_SCANS = 16
JPEG_SCAN_PIXELS = 2**28
"""A progressive JPEG is decoded once per scan; ordinary ones have 10 scans, a hostile one thousands."""

COLUMNS = 2**20
"""Numbers in one row of features."""

CLASSES = 100_000
CLASS_NAME_CHARACTERS = 200

LABELS = 1_000
"""Maximum number of labels that an image may have (task labels)."""

GRADES = 100
"""Maximum number of ordered classes (task grades)."""

CSV_BYTES = 1 * GIB
CSV_LINE_BYTES = 64 * KIB
ROW_GROUP_BYTES = 4 * GIB
"""Uncompressed size of one row group of a Parquet file or one batch of an Arrow file."""

TABLE_ROWS = 2**27
META_BYTES = 4 * MIB
