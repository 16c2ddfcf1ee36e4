"A directory is written whole or not at all, and replaces one of ours only"
import pytest
from pathlib import Path
from fastformers.files import atomic_dir, atomic_file, check_dir
from fastformers.learner.core import classifier_learner
from fastformers.inference.stage_json import read_stage, write_stage
from test_contracts_common import *

def names(path): return sorted(str(o.relative_to(path)) for o in Path(path).rglob('*'))

def write(path, k):
    with atomic_dir(path) as tmp: write_stage(tmp, k=k)

def test_a_link_stays_and_what_it_names_is_replaced(tmp_path):
    real,link = tmp_path/'real',tmp_path/'link'
    write(real, 0)
    link.symlink_to(real)
    write(link, 1)
    assert link.is_symlink() and read_stage(real)['k']==1 and names(tmp_path)==['link','real','real/stage.json']

@pytest.mark.parametrize('error', [KeyboardInterrupt, OSError, ValueError])
def test_an_error_leaves_what_was_there(error, tmp_path):
    write(tmp_path/'a', 1)
    with pytest.raises(error):
        with atomic_dir(tmp_path/'a') as tmp: write_stage(tmp, k=2); raise error
    with pytest.raises(error):
        with atomic_file(tmp_path/'b') as tmp: tmp.touch(); raise error
    assert read_stage(tmp_path/'a')['k']==1 and names(tmp_path)==['a','a/stage.json']

def test_what_is_not_ours_is_not_replaced(tmp_path):
    learn = quiet(classifier_learner(classifier_dls(tiny_df().iloc[:16], tiny_tok('bert'), bs=8), tiny_arch('bert')))
    (tmp_path/'mine').mkdir(); (tmp_path/'mine/letter.txt').write_text('dear')
    for f in (learn.to_hf, learn.save_encoder):
        with pytest.raises(FileExistsError, match='holds no stage.json'): f(tmp_path/'mine')
        with pytest.raises(FileExistsError, match='is a file'): f(tmp_path/'mine/letter.txt')
    assert names(tmp_path)==['mine','mine/letter.txt']
    learn.to_hf(tmp_path/'a'); (tmp_path/'a/model.onnx').write_text('of another network')
    learn.save_encoder(tmp_path/'a') # replaces what was there
    assert not (tmp_path/'a/model.onnx').exists() and (check_dir(tmp_path/'a')/'stage.json').exists()
