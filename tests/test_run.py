"A recipe from the command line to a classifier that opens again"
import json
import numpy as np, pandas as pd, pytest, torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer
from fastformers.cli import main
from fastformers.data.block import classifier_dls
from fastformers.learner.core import classifier_learner
from fastformers.ulmfit.recipe import Recipe, read_recipe
from fastformers.inference.stage_json import read_stage
from fastformers.callback.compute import cpu_bf16
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
    from fastformers.ulmfit.run import lm_texts
    df,test = tiny_df(),pd.DataFrame({'text':[tiny_df().text[0]]})
    train = np.flatnonzero(~df.is_valid)
    texts,dropped = lm_texts(df, train, unlabelled=[df.text[df.is_valid].iloc[0],'new'], test=test)
    assert 'new' in texts and not set(texts) & {*df.text[df.is_valid], *test.text} and dropped>=2

@pytest.mark.parametrize('ini,words', [('[lm]\nepoch = 1', 'epochs'), ('[data]\nsource = nothing.csv', 'nothing.csv'), ('[classifier]\nschedule = gradual', 'gradual_unfreeze'),
    ('[classifier]\nadapters = adapter', 'bottleneck, lora, bitfit'), ('[classifier]\naux_lm = -1', 'more than 0'), ('[classifier]\nlayers = 3 6', 'separated by commas'), ('[model]\nhead = hf\n[classifier]\nlayers = mix', 'layers = -1')])
def test_a_bad_recipe_is_one_line(tmp_path, capsys, ini, words):
    (tmp_path/'bad.ini').write_text(ini)
    assert main(['run', str(tmp_path/'bad.ini')])==2
    err = capsys.readouterr().err.strip().splitlines()[-1]
    assert words in err and 'Traceback' not in err

def test_trec_with_minilm(data_dir):
    from fastformers.ulmfit.run import fine_tune_classifier
    df = pd.read_csv(data_dir/'trec'/'train.csv', keep_default_na=False)[:900]
    stage = fine_tune_classifier(df, 'minilm', epochs=2, lr=3e-4, max_len=32)
    assert stage.metrics['accuracy']>.75 # the largest class is 0.23

def test_every_key_of_a_recipe_reaches_what_it_names(tmp_path):
    "Each value differs from its default, and is read from the stages, their loaders and their models"
    from fastformers.callback.schedule import discriminative_lrs, head_only
    from fastformers.ulmfit.run import fine_tune_lm, ulmfit
    df = tiny_df().rename(columns={'text':'review','label':'kind','is_valid':'held'})
    fine_tune_lm(df, tiny_arch('gpt2'), tmp_path/'start', tok=tiny_tok('bert'), objective='clm', text_col='review', valid_col='held', epochs=.1, bs=8, seq_len=32)
    recipe = Recipe().replace(run=dict(compare=False, seed=7), data=dict(source='x.csv', text_col='review', label_col='kind', valid_col='held'),
                              model=dict(arch=str(tmp_path/'start'), max_len=11, head='mean'), lm=dict(objective='clm', epochs=.5, lr=1e-3, schedule='head_only', bs=5, seq_len=24),
                              classifier=dict(epochs=.7, lr=3e-3, schedule='head_only', bs=6, discr=1.5, layers='mix', adapters='bitfit', aux_lm=.25))
    report = ulmfit(df, recipe=recipe, path=tmp_path/'run', seeds=recipe.run.seed)
    lm,clf = (read_stage(tmp_path/'run'/o) for o in ('target_lm','classifier'))
    assert (lm['sizes']['objective'].lower(), lm['recipe']['seq_len'], lm['recipe']['bs'], lm['lr'], lm['seed'])==('clm', 24, 5, 1e-3, 7)
    assert sum(lm['recipe']['schedule']['epochs'])==pytest.approx(.5) and sum(clf['recipe']['schedule']['epochs'])==pytest.approx(.7)
    learn,n = report.learner,[len(o['recipe']['schedule']['factors'][0]) for o in (lm,clf)]
    assert np.allclose(lm['recipe']['schedule']['factors'], head_only(n[0]).factors)
    assert np.allclose(clf['recipe']['schedule']['factors'], (head_only(n[1])*discriminative_lrs(n[1], 1.5)).factors)
    assert (clf['recipe']['max_len'], clf['recipe']['bs'], clf['recipe']['discr'], clf['recipe']['pool'], clf['lr'], clf['seed'])==(11, 6, 1.5, 'mean', 3e-3, 7)
    assert (clf['recipe']['layers'], clf['recipe']['adapters'], clf['recipe']['aux_lm'])==('mix','bitfit',.25) and 'mix | bitfit | 0.25' in (tmp_path/'run'/'report.md').read_text()
    assert len(learn.model.mix.s)==4 and learn.model.adapters['method']=='bitfit' and learn.auxiliary_lm.weight==.25
    assert learn.dls.train.bs==6 and learn.dls.one_batch()[0].shape[1]<=11 and learn.model.head.layers[0].normalized_shape==(32,) # a mean, not three vectors
    assert sorted(o.name for o in (tmp_path/'run').iterdir() if o.is_dir())==['classifier','target_lm'] # compare = no
    assert f"{tmp_path/'start'} (target LM)"==report.stages[0].parent
    assert len(learn.dls.valid_ds)==int(df.held.sum())

def test_a_report_says_what_automodel_leaves_out(tmp_path, run):
    from fastformers.ulmfit.run import ulmfit
    recipe = Recipe().replace(run=dict(compare=False), lm=dict(objective='none'), classifier=dict(epochs=.2, bs=8, adapters='bottleneck'))
    ulmfit(tiny_df().iloc[:40], arch=str(run/'arch'), recipe=recipe, path=tmp_path/'run')
    assert 'the body alone, without its adapters, for' in (tmp_path/'run'/'report.md').read_text() and 'the body alone, for' in (run/'out'/'report.md').read_text()

def test_a_recipe_may_ask_for_the_head_of_hugging_face(tmp_path, run):
    from transformers import AutoModelForSequenceClassification
    from fastformers.ulmfit.run import ulmfit
    recipe = Recipe().replace(lm=dict(objective='none'), model=dict(head='hf', max_len=16), classifier=dict(epochs=.2, bs=8))
    ulmfit(tiny_df(), arch=str(run/'arch'), recipe=recipe, path=tmp_path/'run')
    _,info = AutoModelForSequenceClassification.from_pretrained(tmp_path/'run'/'classifier_without_lm', output_loading_info=True)
    assert not info['missing_keys']

def test_a_language_model_that_a_family_has_not_is_refused_before_the_data_are_read(tmp_path, capsys, run):
    tiny_arch('xlnet').save_pretrained(tmp_path/'xlnet')
    (tmp_path/'a.csv').write_text('nothing,to,see\n')
    (tmp_path/'a.ini').write_text(f"[run]\noutput = out\n[data]\nsource = a.csv\n[model]\narch = ./xlnet\n[lm]\nobjective = none\n[classifier]\naux_lm = 0.5\n")
    (tmp_path/'out').mkdir(); (tmp_path/'out'/'settings.ini').write_text(Recipe().to_ini()); (tmp_path/'out'/'report.json').write_text('{}') # a run
    assert main(['run', str(tmp_path/'a.ini'), '--force'])==2
    assert 'xlnet has no masked LM' in capsys.readouterr().err and (tmp_path/'out'/'report.json').read_text()=='{}'

def test_what_a_network_has_not_is_found_before_its_language_model_is_trained(tmp_path, monkeypatch, run):
    from fastformers.ulmfit import run as ulmfit
    def never(*args, **kwargs): raise AssertionError('a language model is trained')
    monkeypatch.setattr(ulmfit, 'fine_tune_lm', never)
    with pytest.raises(ValueError, match='9 is no layer of this network; it has 0'): ulmfit.ulmfit(tiny_df(), arch=str(run/'arch'), recipe=Recipe().replace(classifier=dict(layers='-1, 9')), path=tmp_path/'run')
    AutoModel.from_config(tiny_arch('llama')).save_pretrained(tmp_path/'llama'); tiny_tok('llama').save_pretrained(tmp_path/'llama')
    with pytest.raises(ValueError, match='no biases'): ulmfit.ulmfit(tiny_df(), arch=str(tmp_path/'llama'), recipe=Recipe().replace(lm=dict(objective='clm'), classifier=dict(adapters='bitfit')), path=tmp_path/'run')
    assert not (tmp_path/'run').exists()

def test_a_stopped_run_is_compared_in_its_classifier_too(tmp_path, monkeypatch, run):
    from functools import partial
    from fastai.basics import Callback, defaults
    from fastformers.ulmfit import run as ulmfit
    class Accident(Callback):
        order,outside = 2000,True
        def after_batch(self):
            if self.training and self.train_iter==4: raise KeyboardInterrupt
    monkeypatch.setattr(ulmfit, 'Resume', partial(ulmfit.Resume, every=2))
    again = partial(ulmfit.ulmfit, tiny_df(), arch=str(run/'arch'), path=tmp_path/'run')
    r = Recipe().replace(lm=dict(objective='none'), classifier=dict(epochs=1, bs=8, layers='1, 2', adapters='bitfit'))
    with monkeypatch.context() as m:
        m.setattr(defaults, 'callbacks', [*defaults.callbacks, Accident])
        with pytest.raises(KeyboardInterrupt): again(recipe=r)
    with pytest.raises(ValueError, match=r'\[classifier\] layers was \[1, 2\], is mix; \[classifier\] adapters was bitfit, is '): again(recipe=r.replace(classifier=dict(layers='mix', adapters='')), resume=True)
    report = again(recipe=r, resume=True)
    assert report.stages[0].settings==dict(layers=[1,2], adapters='bitfit')

def test_documents_with_labels_are_not_unlabelled_ones_too(monkeypatch):
    from fastformers.text import readers as files
    docs = pd.DataFrame({'text':list('abcdef'), 'label':['x','y']*3, 'is_valid':[False]*5+[True]})
    monkeypatch.setattr(files, 'docs_corpus', lambda n=None, seed=42: docs[:n].copy())
    df,more,_ = files.load_data(Recipe().replace(data=dict(rows=3, unlabelled_rows=0)))
    assert (df.text.tolist(), more.text.tolist())==(list('abc'), ['d','e'])

def test_no_advice_on_a_new_head_that_learns_alone_anyway(run, caplog):
    from fastformers.ulmfit.run import fine_tune_lm
    for schedule,advised in ((None,False), ('lp_ft',False), ('full_tune',True)):
        caplog.clear()
        with caplog.at_level('INFO', 'fastformers'): fine_tune_lm(tiny_df(), str(run/'arch'), epochs=.6, bs=8, seq_len=32, schedule=schedule)
        assert ('train it alone first' in caplog.text)==advised

def test_a_run_does_not_replace_what_it_starts_from(run, capsys):
    (run/'again.ini').write_text('[run]\noutput = out\n[data]\nsource = mine.csv\n[model]\narch = ./out/target_lm\n[lm]\nepochs = 1\n')
    before = (run/'out'/'target_lm'/'stage.json').read_text()
    assert main(['run', str(run/'again.ini'), '--force'])==2
    assert 'would replace' in capsys.readouterr().err and (run/'out'/'target_lm'/'stage.json').read_text()==before

def test_labels_keep_their_zeros_from_a_recipe(tmp_path):
    from fastformers.text.readers import load_data
    (tmp_path/'a.csv').write_text('text,label\n1.50,00\n00001,01\n')
    (tmp_path/'a.ini').write_text('[data]\nsource = a.csv\n')
    assert load_data(read_recipe(tmp_path/'a.ini'))[0].values.tolist()==[['1.50','00'],['00001','01']]

@pytest.mark.parametrize('verb', ['adapt','classify'])
def test_a_separator_that_is_missing_is_named_as_a_flag(tmp_path, capsys, verb):
    for text in ('text;label\nOui;a\n', 'id;text, long;label\n1;b, c, d;e\n', 'id;text, long;label\n1;b, c;e\n'):
        (tmp_path/'semi.csv').write_text(text)
        assert main([verb, str(tmp_path/'semi.csv'), '--output', str(tmp_path/'never')])==2
        err = capsys.readouterr().err
        assert "--sep ';'" in err and 'Traceback' not in err and 'sep=' not in err

def test_a_file_as_source_keeps_what_was_asked_for():
    "Other defaults of a file do not take the place of settings"
    own,usual = (Recipe().replace(data=o).replace(data=dict(source='a.csv')).data for o in (dict(rows=50, unlabelled='more.txt'), {}))
    assert (own.rows, own.unlabelled, own.unlabelled_rows)==(50, 'more.txt', 0) and (usual.rows, usual.unlabelled, usual.unlabelled_rows)==(0, '', 0)
