"A recipe from the command line to a classifier that opens again"
import json
import numpy as np, pandas as pd, pytest, torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer
from fastformers.cli import main
from fastformers.data import classifier_dls
from fastformers.learner import classifier_learner
from fastformers.recipe import Recipe, read_recipe
from fastformers.stages import read_stage
from fastformers.training import cpu_bf16
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

@pytest.fixture(scope='module')
def run(tmp_path_factory):
    "A finished run on a small csv with odd texts, from a checkpoint without an LM head"
    d = tmp_path_factory.mktemp('run')
    torch.manual_seed(0)
    AutoModel.from_config(tiny_arch('bert')).save_pretrained(d/'arch'); tiny_tok('bert').save_pretrained(d/'arch')
    df = pd.concat([tiny_df(), pd.DataFrame({'text':['', 'null', '🎬'*300, '[SEP] fine'], 'label':['neutral','negative','positive','positive'], 'is_valid':[False]*3+[True]})])
    df.to_csv(d/'mine.csv', index=False)
    tiny_df()[['text','label']][:10].to_csv(d/'test.csv', index=False)
    recipe = Recipe().replace(run=dict(output='out', seed='1, 2'), data=dict(source='mine.csv', test='test.csv'), model=dict(arch='./arch'),
                              lm=dict(epochs=2, lr=3e-3, bs=8, seq_len=32), classifier=dict(epochs=2, lr=3e-3, bs=8, schedule='gradual_unfreeze'))
    (d/'mine.ini').write_text(recipe.to_ini())
    assert main(['run', str(d/'mine.ini')])==0
    return d

def test_a_run_leaves_a_report_and_a_recipe_that_repeats_it(run):
    out = run/'out'
    assert {'report.md','report.png','report.json','settings.ini','target_lm','classifier','classifier_without_lm','classifier_seed2'} <= {o.name for o in out.iterdir()}
    text = (out/'report.md').read_text()
    assert 'test' in text and str(run) not in text
    facts = json.loads((out/'report.json').read_text())
    assert len(facts['gains'])==3 and all(g['low']<=g['better_by']<=g['high'] for g in facts['gains'])
    assert read_recipe(out/'settings.ini').classifier==read_recipe(run/'mine.ini').classifier

def test_a_finished_run_is_not_overwritten_unasked(run, capsys):
    assert main(['run', str(run/'mine.ini')])==2
    assert '--force' in capsys.readouterr().err

def test_stages_open_with_plain_transformers(run):
    out = run/'out'
    lm,body = AutoModelForMaskedLM.from_pretrained(out/'target_lm'),AutoModel.from_pretrained(out/'classifier')
    assert lm.get_output_embeddings().weight is lm.get_input_embeddings().weight
    assert AutoTokenizer.from_pretrained(out/'classifier')('a film').input_ids==tiny_tok('bert')('a film').input_ids
    assert read_stage(out/'classifier')['parent']['stage']=='target LM' and body.config.hidden_size==32

def test_the_saved_classifier_predicts_as_the_report_says(run):
    df = pd.read_csv(run/'mine.csv', keep_default_na=False)
    learn = classifier_learner(classifier_dls(df, str(run/'out'/'classifier'), max_len=128, bs=8, device='cpu'), run/'out'/'classifier', cbs=cpu_bf16)
    with learn.no_bar(): accuracy = learn.validate()[1]
    assert accuracy==pytest.approx(read_stage(run/'out'/'classifier')['metrics']['accuracy'], abs=1e-6) # the precision of the run, decided once a process

def test_the_language_model_never_sees_held_out_texts(run):
    from fastformers.ulmfit import lm_texts
    df,test = tiny_df(),pd.DataFrame({'text':[tiny_df().text[0]]})
    train = np.flatnonzero(~df.is_valid)
    texts,dropped = lm_texts(df, train, unlabelled=[df.text[df.is_valid].iloc[0],'new'], test=test)
    assert 'new' in texts and not set(texts) & {*df.text[df.is_valid], *test.text} and dropped>=2

@pytest.mark.parametrize('ini,words', [('[lm]\nepoch = 1', 'epochs'), ('[data]\nsource = nothing.csv', 'nothing.csv'), ('[classifier]\nschedule = gradual', 'gradual_unfreeze')])
def test_a_bad_recipe_is_one_line(tmp_path, capsys, ini, words):
    (tmp_path/'bad.ini').write_text(ini)
    assert main(['run', str(tmp_path/'bad.ini')])==2
    err = capsys.readouterr().err.strip().splitlines()[-1]
    assert words in err and 'Traceback' not in err

def test_trec_with_minilm(data_dir):
    from fastformers.ulmfit import fine_tune_classifier
    df = pd.read_csv(data_dir/'trec'/'train.csv', keep_default_na=False)[:900]
    stage = fine_tune_classifier(df, 'minilm', epochs=2, lr=3e-4, max_len=32)
    assert stage.metrics['accuracy']>.75 # the largest class is 0.23
