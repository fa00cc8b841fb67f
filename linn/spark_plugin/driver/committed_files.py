"""The committed files of a pipeline's output: `python -m linn.spark_plugin.driver.committed_files`.

The broker runs it for `linn spark files`, with the pipeline's specification as the first line of input. It writes one
line of status for each file, or a line with the reason if it can't. It does not start Spark.
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from pyarrow import fs

from linn.spark_plugin.driver.failure import failure_of
from linn.spark_plugin.driver.sinks import LAKES, lake_sink
from linn.spark_plugin.driver.status import StatusWriter
from linn.spark_plugin.errors import PipelineInvalid
from linn.spark_plugin.spark_metadata import LOG, committed_urls
from linn.spark_plugin.spec import PipelineSpec


def main() -> int:
    """Write the files. Returns the exit code: 1 if they can't be listed."""
    status = StatusWriter.from_environment()
    try:
        files = committed_files(msgspec.json.decode(sys.stdin.readline(), type=PipelineSpec))
    except Exception as error:
        status.write("failed", **failure_of(error)._asdict())
        return 1
    for file in files:
        status.write("file", path=file)
    return 0


def committed_files(pipeline: PipelineSpec) -> list[str]:
    """Return the files that make up a pipeline's output now: local files as paths, others as URLs.

    Raises PipelineInvalid: the format has no files, or rows in the files are deleted; errors of the format's library.
    """
    if pipeline.format in LAKES:
        return sorted(map(_plain, lake_sink(pipeline).files()))
    if pipeline.format not in ("parquet", "json"):
        raise PipelineInvalid(f"format {pipeline.format} writes no files")
    assert pipeline.path is not None
    is_url = urlsplit(pipeline.path).scheme != ""
    files, root = fs.FileSystem.from_uri(_plain(pipeline.path) if is_url else str(Path(pipeline.path).absolute()))
    folder = f"{root.rstrip('/')}/{LOG}"

    def text(name: str) -> str:
        with files.open_input_stream(f"{folder}/{name}") as stream:
            return str(stream.read(), "utf-8")

    names = [each.base_name for each in files.get_file_info(fs.FileSelector(folder, allow_not_found=True))]
    return sorted(map(_plain, committed_urls(names, text)))


def _plain(url: str) -> str:
    """Return a file in the form that most tools take: a path for a local file, s3:// for Hadoop's s3a://."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return unquote(parts.path)
    return f"s3{url[3:]}" if parts.scheme == "s3a" else url


if __name__ == "__main__":
    sys.exit(main())
