"""Files in S3: patterns, ranges, credentials and a cache, against moto's server."""

import pytest

from gpuloader import CSVDataset, DataLoader, ParquetDataset, SourceError, TarDataset
from tests.sample_sets import INLINE, PROCESSES, name_workers
from tests.sources.files.parquet_files import COLUMNS, SHUFFLED, write_files
from tests.sources.files.tar_files import write_tar

pytest.importorskip("s3fs")
boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto.server")

KEYS = {"key": "a key", "secret": "a secret"}


@pytest.fixture(scope="module")
def endpoint():
    server = moto.ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def client(endpoint):
    access = {"aws_access_key_id": KEYS["key"], "aws_secret_access_key": KEYS["secret"]}
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **access)


@pytest.fixture
def bucket(endpoint, client, request):
    """Return a function that stores the files of a folder, and the options to read them with."""
    name = f"bucket{abs(hash(request.node.name))}"
    client.create_bucket(Bucket=name)

    def store(folder):
        for path in filter(lambda path: path.is_file(), folder.rglob("*")):
            client.upload_file(str(path), name, str(path.relative_to(folder)))
        return f"s3://{name}", {**KEYS, "client_kwargs": {"endpoint_url": endpoint}}

    return store


@pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)
@pytest.mark.parametrize("urls", ["/", "/*.parquet"])
def test_parquet_by_folder_and_pattern(tmp_path, bucket, workers, urls):
    write_files(tmp_path)
    url, options = bucket(tmp_path)
    dataset = ParquetDataset(url + urls, COLUMNS, **SHUFFLED, storage_options=options)
    loader = DataLoader(dataset, places="cpu", batch_size=7, **workers)
    assert sorted(label for batch in loader for label in batch["label"]) == list(range(100))
    rows = ParquetDataset(url + urls, ["label"], storage_options=options).random_access()
    assert rows[[99, 3]]["label"].tolist() == [99, 3]


def test_text_and_tar(tmp_path, bucket):
    (tmp_path / "a.csv").write_text("n\n" + "".join(f"{row}\n" for row in range(50)))
    write_tar(tmp_path / "a.tar", [(f"{row}.n", str(row).encode()) for row in range(50)])
    url, options = bucket(tmp_path)
    how = {"storage_options": options}
    csv, tar = CSVDataset(f"{url}/a.csv", **how), TarDataset(f"{url}/*.tar", lambda one: int(one["n"]), **how)
    assert [int(row["n"]) for row in csv] == list(tar) == list(range(50))


def test_a_cache_keeps_what_the_bucket_loses(tmp_path, bucket, client):
    (tmp_path / "files").mkdir()
    write_files(tmp_path / "files")
    url, options = bucket(tmp_path / "files")
    dataset = ParquetDataset(f"{url}/", ["label"], storage_options=options, cache_dir=tmp_path / "cache")
    assert len(list(dataset)) == 100
    for name in ("0.parquet", "1.parquet"):
        client.delete_object(Bucket=url.removeprefix("s3://"), Key=name)
    assert len(list(dataset)) == 100


def test_what_is_not_there_is_an_error_at_once(tmp_path, bucket):
    url, options = bucket(tmp_path)
    with pytest.raises(SourceError, match="no file matches s3://") as caught:
        ParquetDataset(f"{url}/*.parquet", storage_options=options)
    with pytest.raises(SourceError, match=r"gone\.parquet") as caught:
        ParquetDataset(f"{url}/gone.parquet", storage_options=options)
    assert caught.value.attempts == 1
