"""Data: the section of the configuration that says where rows come from and what is done to them."""

import os
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from qat_tft.config.fields import Folder, Fraction, Metavar, Moment, Names, PositiveInt, Section
from qat_tft.data.missing import MissingPolicies
from qat_tft.data.preparation import DuplicatePolicy, GapPolicy, Preparation
from qat_tft.data.reading.files.url import require_without_secrets
from qat_tft.errors import DataError


class DataConfig(Section):
    """Where the rows come from and how they are split and standardized."""

    title: ClassVar = "Data"
    flags: ClassVar = {"parquet_files": "--parquet-file", "cache": "--no-cache"}
    only_in_files: ClassVar = frozenset({"unknown_rate", "mark_target"})

    parquet_files: Annotated[tuple[str, ...], Metavar("FILE")] = Field(
        default=(),
        description="Parquet file, folder or URL (s3://, gs://, https://), repeatable; none: the embedded bike rentals",
    )
    validation: Fraction = Field(default=0.1, description="share of the time span for validation")
    test: Fraction = Field(default=0.1, description="share of the time span for testing")
    validation_from: Moment | None = Field(default=None, description="start of validation, instead of a share")
    test_from: Moment | None = Field(default=None, description="start of the test, instead of a share")
    test_until: Moment | None = Field(default=None, description="first time after the test; none: the end of the data")
    unknown_rate: Fraction = Field(default=0.01, description="share of categories masked as unknown in training")
    season: PositiveInt | None = Field(
        default=None, description="period of the seasonal naive forecast in rows; none: derived from the time step"
    )
    duplicates: DuplicatePolicy = Field(
        default="error", description="rows of the same series and time: refuse them, keep the last, or average them"
    )
    gaps: GapPolicy = Field(
        default="ignore",
        description="time steps without a row: refuse them, take the next row for the next step, insert rows, "
        "or let no window span them",
    )
    cache: bool = Field(default=True, description="keep the prepared rows of large files for the next start")
    cache_dir: Folder | None = Field(
        default=None, description="folder for the prepared rows; none: qat-tft in the user's cache folder"
    )
    missing: Annotated[Names, Metavar("POLICY or COLUMN=POLICY,...")] = Field(
        default=(),
        description="policy for missing values of every real column, or of one as column=policy: "
        "error (default), forward, mean, zero",
    )
    mark_target: bool = Field(
        default=True, description="append a column that marks targets which policy mean has filled"
    )
    min_history: PositiveInt | None = Field(
        default=None,
        description="minimum rows of a history, padded and masked to full length; none: full histories only",
    )
    target_transform: Literal["none", "log", "log1p", "softplus"] = Field(
        default="none", description="transform of a positive target before standardization, inverted in the forecast"
    )
    calendar: Names = Field(
        default=(), description="known columns derived from the time, such as hour,day_of_week,month:category"
    )

    @field_validator("parquet_files")
    @classmethod
    def _urls_hold_no_secrets(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        for file in files:
            try:
                require_without_secrets(file)
            except DataError as refusal:
                raise ValueError(f"data.parquet_files: {refusal}") from None
        return files

    @field_validator("calendar")
    @classmethod
    def _calendar_is_known(cls, features: tuple[str, ...]) -> tuple[str, ...]:
        if not features:
            return features
        from qat_tft.data.time.calendar import parse_calendar  # with it come numpy and pyarrow, for every command line

        try:
            parse_calendar(features)
        except ValueError as problem:
            raise ValueError(f"data.calendar: {problem}") from None
        return features

    @field_validator("missing")
    @classmethod
    def _policies_are_known(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        MissingPolicies.parse(entries)
        return entries

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if (self.validation_from is None) != (self.test_from is None):
            raise ValueError("set data.validation_from and data.test_from together, or neither")
        if self.validation + self.test >= 1.0:
            raise ValueError(
                f"data.validation {self.validation} + data.test {self.test} leave no training rows: "
                "their sum must be below 1"
            )
        return self

    @property
    def cache_folder(self) -> Path | None:
        """Where prepared rows are kept; None where they are not to be, or where the user has no home and named none."""
        if not self.cache:
            return None
        if self.cache_dir is not None:
            return Path(self.cache_dir)
        home = os.path.expanduser("~")  # as it is where neither HOME nor the system tells of one
        caches = os.environ.get("XDG_CACHE_HOME") or (home != "~" and os.path.join(home, ".cache"))
        return Path(caches) / "qat-tft" if caches else None

    @property
    def preparation(self) -> Preparation:
        """What these settings do to rows between the file and the windows."""
        return Preparation(
            duplicates=self.duplicates,
            gaps=self.gaps,
            missing=self.missing,
            min_history=self.min_history,
            calendar=self.calendar,
            mark_target=self.mark_target,
        )
