"""Writes small DICOM files, of made-up patients, from arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def write_dicom(path: Path, pixels: np.ndarray, *, patient: str | None = "PATIENT-7", **changes: Any) -> Path:
    """A file with the given stored values; `changes` are other attributes, and None removes one."""
    from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = changes.pop("TransferSyntaxUID", ExplicitVRLittleEndian)
    file = FileDataset(str(path), Dataset(), file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    file.Modality = "CR"
    file.Rows, file.Columns = pixels.shape[:2]
    colour = pixels.ndim == 3
    file.SamplesPerPixel = 3 if colour else 1
    file.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    if colour:
        file.PlanarConfiguration = 0
    file.BitsAllocated = file.BitsStored = 8 * pixels.dtype.itemsize
    file.HighBit = file.BitsStored - 1
    file.PixelRepresentation = int(pixels.dtype.kind == "i")
    file.PixelData = pixels.tobytes()
    if patient is not None:
        file.PatientID, file.PatientName = patient, f"Name^{patient}"
    for name, value in changes.items():
        if value is None:
            delattr(file, name)
        else:
            setattr(file, name, value)
    file.save_as(path, enforce_file_format=True)
    return path
