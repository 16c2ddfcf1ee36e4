"Directories that earlier releases wrote are opened, with the same answers"
import importlib.util, json
from pathlib import Path
import pytest
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.testing import tiny_df

root = Path(__file__).parent/'releases'
spec = importlib.util.spec_from_file_location('write', root/'write.py')
write = importlib.util.module_from_spec(spec)
spec.loader.exec_module(write)
kept = [(o.parent, k, v) for o in sorted(root.glob('*/answers.json')) for k,v in json.loads(o.read_text('utf-8')).items()]

def close(a, b):
    "Compare two answers, numbers to 1e-5"
    if isinstance(a, dict): return a.keys()==b.keys() and all(close(a[k], b[k]) for k in a)
    if isinstance(a, (list,tuple)): return len(a)==len(b) and all(map(close, a, b))
    return a==pytest.approx(b, rel=1e-4, abs=1e-5) if isinstance(a, float) else a==b

@pytest.mark.exact
@pytest.mark.parametrize('release,name,asked', kept, ids=lambda o: getattr(o, 'name', o) if not isinstance(o, dict) else '')
def test_a_directory_of_an_earlier_release_answers_as_it_did(release, name, asked):
    assert close(json.loads(json.dumps(write.answers(name, release/name, asked['items']), default=float)), asked['answers'])

@pytest.mark.parametrize('release', sorted({o for o,_,_ in kept}), ids=lambda o: o.name)
def test_training_goes_on_from_an_earlier_release(release):
    df = tiny_df()
    for name in ('lm_bert','single','linear'):
        learn = classifier_learner(classifier_dls(df, release/name, device='cpu'), release/name)
        assert learn.model.loaded.loaded and learn.model.task.labels==['negative','neutral','positive']
    assert lm_learner(lm_dls(df, release/'lm_gpt2', device='cpu'), release/'lm_gpt2').lineage.stage['format']==1
