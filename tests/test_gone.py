"Names of earlier versions: an error that says what to write instead, and what was written with them opens"
import pytest
from fastformers.compare.leaderboard import leaderboard
from fastformers.data.block import classifier_dls
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import classifier_learner
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.ulmfit.recipe import as_recipe, read_recipe
from fastformers.ulmfit.record import Stage
from fastformers.ulmfit.stage import fine_tune_classifier

settings = dict(halvings=(2, 'lower `lr`'), grad_windows=(2, '`SampleWindow`'))

@pytest.mark.parametrize('key', settings)
def test_a_setting_that_has_gone(key, tmp_path):
    value,says = settings[key]
    (tmp_path/'settings.ini').write_text(f'[classifier]\n{key} = {value}\n')
    for f in (lambda: fine_tune_classifier(tiny_df(), 'minilm', **{key:value}), lambda: as_recipe(dict(classifier={key:value})),
              lambda: read_recipe(tmp_path/'settings.ini')):
        with pytest.raises((TypeError,ValueError), match=f'{key}.*it has gone: .*{says}'): f()

def test_a_pooling_that_has_gone(tmp_path):
    learn = classifier_learner(classifier_dls(tiny_df(), tiny_tok('bert'), device='cpu'), tiny_arch('bert'), pool='mean')
    facts = (saved := learn.to_hf(tmp_path/'saved'))/'classifier.json'
    facts.write_text(facts.read_text().replace('"pool": "mean"', '"pool": "attn"'))
    (tmp_path/'settings.ini').write_text('[classifier]\npool = attn\n')
    for f in (lambda: fine_tune_classifier(tiny_df(), 'minilm', pool='attn'), lambda: as_recipe(dict(classifier=dict(pool='attn'))),
              lambda: read_recipe(tmp_path/'settings.ini'), lambda: classifier_learner(learn.dls, tiny_arch('bert'), pool='attn'),
              lambda: from_hf(saved)):
        with pytest.raises(ValueError, match="'attn' is unknown; it has gone: fastformers 0.2.0 opens .*available: cls"): f()

def test_an_entry_that_has_gone():
    with pytest.raises(ValueError, match="'search' is unknown; it has gone: .*`all layers`"): leaderboard(tiny_df(), entries=['search'])

def test_what_earlier_versions_wrote_opens(tmp_path):
    price = dict(seconds=9., cpu_seconds=8., joules=None, by='CPU seconds')
    stage = Stage('classifier', metrics={'accuracy':.8}, price=price, answers=price, settings=dict(halvings=2, grad_windows=1))
    stage.save(tmp_path/'record.json')
    table = Stage.load(tmp_path/'record.json').table()
    assert table.price.item()=='8.000 CPU s' and table.settings.item()=='halvings 2, grad_windows 1'
    board = leaderboard(tiny_df(), entries=['TF-IDF'], minutes=1, seeds=(1,2), path=tmp_path/'run')
    facts = board.fits['TF-IDF',1][1]
    facts |= dict(by='CPU seconds', found={}, joules=None, answers_joules=None)
    assert set(board.table.columns).isdisjoint(('joules','answers_joules')) and 'TF-IDF' in repr(board)
