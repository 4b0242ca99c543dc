"""Every failure to read a file as one message: what is wrong, where, and what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError, URLError

import pyarrow as pa

from qat_tft.data.reading.files.url import is_url
from qat_tft.errors import DataError

_OTHERS = {
    "csv": "a CSV file",
    "tsv": "a TSV file",
    "txt": "a text file",
    "json": "a JSON file",
    "jsonl": "a JSON file",
    "xlsx": "an Excel file",
    "feather": "a Feather file",
    "arrow": "an Arrow file",
    "gz": "a compressed file",
    "zip": "a compressed file",
}
"""What people have that is no Parquet, by the ends of names."""
_CODE = re.compile(r"AWS Error (\w+)(?: \(HTTP status (\d+)\))?")
_REGION = re.compile(r"the bucket is located in '([\w-]+)'")
_UNKNOWN_KEYS = ("INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN_ID", "SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT")


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn every failure to read a file into one DataError.

    Args:
        where: its path or URL.
    """
    try:
        yield
    except pa.ArrowInvalid as error:
        other = _OTHERS.get(where.rpartition(".")[2].lower())
        raise DataError(
            f"this is {other} and no Parquet file"
            if other
            else f"this is not a complete Parquet file: {_first_line(error)}",
            where=where,
            allowed="Parquet; for example pandas writes it with DataFrame.to_parquet",
        ) from None
    except (UnicodeDecodeError, OverflowError, IndexError) as error:  # out of a damaged footer
        raise DataError(
            f"this is a damaged Parquet file: {_first_line(error)}", where=where, next_step="Write it again."
        ) from None
    except (OSError, pa.ArrowException, MemoryError) as error:
        raise (_of_store(error, where) if is_url(where) else _of_system(error, where)) from None


def _of_system(error: Exception, where: str) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError("there is no such file", where=where, next_step="Check the path.")
    if isinstance(error, PermissionError):
        return DataError("no permission to read it", where=where, next_step="Check its permissions.")
    return DataError(
        f"the file cannot be read: {_first_line(error)}",
        where=where,
        next_step="Check that it was written completely.",
    )


def _of_store(error: Exception, where: str) -> DataError:
    # What a store answers may repeat whom it took the request to be from: its code is shown and its words are not.
    text = str(error)
    found = _CODE.search(text)
    code = found[1] if found else ""
    status = error.code if isinstance(error, HTTPError) else int(found[2]) if found and found[2] else 0
    region = _REGION.search(text)
    if region:
        return DataError(f"the bucket is in region {region[1]}", where=where, next_step=f"Set AWS_REGION={region[1]}.")
    if isinstance(error, FileNotFoundError) or status == 404 or code in ("NO_SUCH_BUCKET", "NO_SUCH_KEY"):
        what = text if text.startswith("there is no") else "there is no such object"
        return DataError(what, where=where, next_step="Check bucket and path, and AWS_ENDPOINT_URL if it is set.")
    if isinstance(error, PermissionError) or status in (401, 403) or code == "ACCESS_DENIED":
        return DataError("access is denied, or there are no credentials", where=where, next_step=_credentials(where))
    if code in _UNKNOWN_KEYS:
        return DataError("the credentials are not valid", where=where, next_step=_credentials(where))
    return DataError(
        f"the object cannot be read: {_reason(error, code, status)}",
        where=where,
        next_step="Try again; if it persists, check the network, and AWS_ENDPOINT_URL if it is set.",
    )


def _credentials(where: str) -> str:
    if where.startswith("s3:"):
        return "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine's role the right to read it."
    if where.startswith("gs:"):
        return "Set GOOGLE_APPLICATION_CREDENTIALS, or give this machine's account the right to read it."
    return "Name an object that the server gives without credentials, or download the file."


def _reason(error: Exception, code: str, status: int) -> str:
    if status:
        return f"the server answers {status}"
    if code:
        return code.lower().replace("_", " ")
    if isinstance(error, URLError):
        return _first_line(error.reason) if isinstance(error.reason, Exception) else str(error.reason)
    return _first_line(error).partition(" (")[0]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
