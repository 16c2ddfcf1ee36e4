"Ray Data labels a table in two processes as one process does"
import os, time
import pandas as pd, pytest
from transformers import BertForSequenceClassification
from fastformers.inference.predictor import from_hf
from fastformers.testing import tiny_arch, tiny_tok
from fastformers.text.corpora import intents

os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
ray = pytest.importorskip('ray')
pytest.importorskip('ray.data')

@pytest.fixture
def on_ray():
    "Start Ray with a core for each of two processes, and one for what divides the table"
    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=200_000_000, log_to_driver=False)
    ray.data.DataContext.get_current().wait_for_min_actors_s = 60          # or the first to start labels all rows
    yield
    ray.shutdown()

@pytest.mark.exact
def test_two_processes_of_ray_give_the_answers_of_one(tmp_path, on_ray):
    cfg = tiny_arch('bert', id2label={0:'negative', 1:'neutral', 2:'positive'}, initializer_range=.3)
    BertForSequenceClassification(cfg).save_pretrained(tmp_path); tiny_tok('bert').save_pretrained(tmp_path)
    df = pd.DataFrame({'id':range(20_000), 'text':intents().text[:20_000].tolist()})

    class Classifier:                                                       # is sent by value
        def __init__(self, path): self.predictor = from_hf(path, device='cpu')
        def __call__(self, df): return self.predictor.predict_frame(df).assign(pid=os.getpid())

    start = time.perf_counter()
    want = from_hf(tmp_path, device='cpu').predict_frame(df)
    one = time.perf_counter()
    ds = ray.data.from_pandas(df).repartition(10)
    how = dict(batch_format='pandas', batch_size=2000, compute=ray.data.ActorPoolStrategy(size=2))
    got = ds.map_batches(Classifier, fn_constructor_args=[str(tmp_path)], **how).to_pandas()
    print(f'one process {one-start:.1f} s, two of Ray {time.perf_counter()-one:.1f} s')
    got = got.sort_values('id', ignore_index=True)
    assert got.pid.nunique()==2 and os.getpid() not in {*got.pid} and want.label.nunique()==3
    assert got.text.tolist()==df.text.tolist() and got.label.tolist()==want.label.tolist()
    assert (got.score-want.score).abs().max()<1e-5
