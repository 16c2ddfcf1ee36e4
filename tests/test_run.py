"A recipe becomes stages, a report and a classifier that opens again; its settings reach what they name"
import dataclasses, json, re
import numpy as np, pandas as pd, pytest, torch
from fastai.callback.core import Callback
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer
from fastformers.callback.schedule import discriminative_lrs, head_only
from fastformers.data.block import classifier_dls, tokenizer_of
from fastformers.inference.bundle import read_bundle
from fastformers.inference.predictor import from_hf
from fastformers.inference.stage_json import read_stage
from fastformers.learner.core import classifier_learner
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.text.corpora import intents
from fastformers.ulmfit import run as run_module
from fastformers.ulmfit.recipe import Recipe, TaskConfig, demo_recipe, read_recipe
from fastformers.stats import paired_bootstrap
from fastformers.data.labels import lm_texts
from fastformers.data.rows import Rows
from fastformers.ulmfit.report import Report
from fastformers.ulmfit.run import ulmfit
from fastformers.learner.evaluate import evaluate
from fastformers.learner.judge import linear_rival
from fastformers.ulmfit.read import with_reading
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm

odd = pd.DataFrame({'text':['', 'null', '🎬'*300, '[SEP] fine'], 'label':['neutral','negative','positive','positive'], 'is_valid':[False]*3+[True]})

@pytest.fixture(scope='module')
def run(tmp_path_factory):
    "(directory, report) of a run on a small table with odd texts, from a checkpoint without an LM head"
    d = tmp_path_factory.mktemp('run')
    torch.manual_seed(0)
    AutoModel.from_config(tiny_arch('bert')).save_pretrained(d/'arch'); tiny_tok('bert').save_pretrained(d/'arch')
    recipe = Recipe().replace(run=dict(seeds=(1,2)), model=dict(arch=str(d/'arch')), lm=dict(epochs=2, lr=3e-3, bs=8, seq_len=32),
                              classifier=dict(epochs=2, lr=3e-3, bs=8, schedule='gradual_unfreeze', max_len=128))
    return d, ulmfit(pd.concat([tiny_df(), odd], ignore_index=True), test=tiny_df()[:10], recipe=recipe, path=d/'out')

def test_a_run_leaves_a_report_and_stages(run):
    d,report = run
    assert {'report.md','report.png','report.json','run.json','target_lm','classifier','classifier_general','classifier_seed2'} <= {o.name for o in (d/'out').iterdir()}
    facts = json.loads((d/'out'/'report.json').read_text())
    assert [(g['what'], g['on']) for g in facts['gains']]==[(w,o) for o in ('validation','test') for w in ('target LM','against TF-IDF')]+[(w,'validation') for w in ('target LM','all layers')]
    assert all(g['low']<=g['better_by']<=g['high'] for g in facts['gains']) and report.sentences()[0].startswith('Accuracy on ')
    assert [o.seed for o in report.stages]==[1,1,1,2,2,1] and not (d/'out'/'checkpoints').exists()

def test_a_stage_that_lost_is_not_what_one_goes_on_with(run):
    report = run[1]
    assert report.best is report.final[0] # no measurable difference
    def scored(o, value): return dataclasses.replace(o, score=np.full(40, value), score_before=None, test_score=None, groups={})
    lost = Report([scored(o, float(o.name!='classifier')) if 'classifier' in o.name else o for o in report.stages if o.name!='TF-IDF'])
    assert lost.verdict().word=='LOSS' and lost.best.name=='classifier from the general LM' and lost.best.path
    assert 'Go on with classifier from the general LM' in '\n'.join(lost.sentences())

def test_columns_have_numbers_and_tfidf_the_name_of_its_score(run):
    df = tiny_df().assign(label=lambda d: d.label+np.where(np.arange(len(d))%2, ';odd', '')).set_axis(range(3), axis=1)
    report = ulmfit(df, text_col=0, label_col=1, valid_col=2, arch=run[0]/'arch', recipe=dict(lm=dict(objective='none'), classifier=dict(epochs=0, score='f1_macro')))
    (own,),(words,) = report.named['classifier'],report.named['TF-IDF']
    assert own.metrics.keys()>{'f1_macro','f1_samples'} and words.metrics=={'f1_macro':pytest.approx(words.score.mean())}

def test_stages_open_with_plain_transformers(run):
    out = run[0]/'out'
    lm,body = AutoModelForMaskedLM.from_pretrained(out/'target_lm'),AutoModel.from_pretrained(out/'classifier')
    assert lm.get_output_embeddings().weight is lm.get_input_embeddings().weight
    assert AutoTokenizer.from_pretrained(out/'classifier')('a film').input_ids==tiny_tok('bert')('a film').input_ids
    assert read_stage(out/'classifier')['parent']['stage']=='target LM' and body.config.hidden_size==32

def test_the_saved_classifier_predicts_as_the_report_says(run):
    d,report = run
    df = pd.concat([tiny_df(), odd], ignore_index=True)
    learn = classifier_learner(classifier_dls(df, str(d/'out'/'classifier'), max_len=128, bs=8, device='cpu'), d/'out'/'classifier')
    assert evaluate(learn)[0]['accuracy']==pytest.approx(report.stages[1].metrics['accuracy'], abs=1e-6)
    predictor = from_hf(d/'out'/'classifier')
    for rows,score in ((df[df.is_valid], report.stages[1].score), (tiny_df()[:10], report.stages[1].test_score)): # in the order of the rows
        assert [o['label']==l for o,l in zip(predictor(rows.text.tolist()), rows.label)]==score.astype(bool).tolist()

def test_checkpoints_of_one_name_are_refused(run, tmp_path):
    recipe = Recipe().replace(run=dict(archs=('a/general',)), lm=dict(objective='none'))
    with pytest.raises(ValueError, match='different names'): ulmfit(tiny_df(), arch=str(run[0]/'arch'), recipe=recipe, path=tmp_path/'run')

def test_a_bootstrap_takes_seeds_on_either_side():
    a,b = np.random.default_rng(0).random((2,3,50))
    assert np.allclose(paired_bootstrap(a[0], b), paired_bootstrap(np.stack([a[0]]*3), b)) and np.isclose(paired_bootstrap(a[0], b)[0], a[0].mean()-b.mean())

def test_a_finished_run_is_read_not_trained(run, monkeypatch):
    d,report = run
    def never(*args, **kwargs): raise AssertionError('a stage is trained')
    for o in ('fine_tune_lm','fine_tune_classifier'): monkeypatch.setattr(run_module, o, never)
    recipe = Recipe().replace(run=dict(seeds=(1,2)), model=dict(arch=str(d/'arch')), lm=dict(epochs=2, lr=3e-3, bs=8, seq_len=32),
                              classifier=dict(epochs=2, lr=3e-3, bs=8, schedule='gradual_unfreeze', max_len=128))
    again = ulmfit(pd.concat([tiny_df(), odd], ignore_index=True), test=tiny_df()[:10], recipe=recipe, path=d/'out', resume=True)
    assert again.gains().equals(report.gains()) and again.table().drop(columns=['time','price']).equals(report.table().drop(columns=['time','price']))
    assert evaluate(again.learner)[0]==pytest.approx(again.stages[1].metrics, abs=1e-5)

def test_the_language_model_never_sees_held_out_texts():
    df,test = tiny_df(),pd.DataFrame({'text':[tiny_df().text[0]]})
    held = df.text[df.is_valid].iloc[0]
    texts,dropped = lm_texts(df, np.flatnonzero(~df.is_valid), unlabelled=[held.upper()+' ', 'new'], test=test)
    assert 'new' in texts and not set(texts) & {*df.text[df.is_valid], *test.text, held.upper()+' '} and dropped>=2

@pytest.mark.exact
@pytest.mark.parametrize('flag', ['refit','calibrate'])
def test_test_rows_choose_nothing(run, tmp_path, flag):
    "Without test rows, or with other labels in them, the classifier and its record are the same"
    rows = tiny_df()[:12]
    other = rows.assign(label=rows.label.map(dict(negative='neutral', neutral='positive', positive='negative')))
    how = dict(arch=str(run[0]/'arch'), epochs=2., bs=8, max_len=32) | {flag:True}
    stages = [fine_tune_classifier(tiny_df(), path=tmp_path/k, test=o, **how) for k,o in dict(none=None, rows=rows, other=other).items()]
    assert not stages[0].test and stages[1].test!=stages[2].test
    for o in stages[1:]:
        assert all(getattr(o, k)==getattr(stages[0], k) for k in ('metrics','before','lr','losses'))
        for f in ('model.safetensors','head.safetensors'): assert (o.path/f).read_bytes()==(stages[0].path/f).read_bytes()
        assert read_bundle(o.path).task.to_dict()==read_bundle(stages[0].path).task.to_dict()           # the temperature too
    assert len([*tmp_path.glob('*_tfidf')]) in (0,3)

@pytest.mark.parametrize('ini,words', [('[lm]\nepoch = 1', 'did you mean epochs'), ('[classifer]\nlr = 1', 'did you mean classifier'), ('lr = 1', 'no section'),
    ('[classifier]\nhidden_states = 3 6', 'separated by commas'), ('[model]\narch = minilm\n[general]\nepochs = 1', 'expected one of them'), ('[data]\nrows = many', 'a whole number or blank')])
def test_a_bad_recipe_is_one_line(tmp_path, ini, words):
    (tmp_path/'bad.ini').write_text(ini)
    with pytest.raises(ValueError, match=words) as e: read_recipe(tmp_path/'bad.ini')
    assert '\n' not in str(e.value) and 'bad.ini' in str(e.value)

def test_defaults_are_for_the_users_data():
    own,demo = Recipe().data,demo_recipe().data
    assert (own.rows, own.unlabelled, own.unlabelled_rows)==(None,None,None) and (demo.rows, demo.unlabelled, demo.test)==(300,'intents','intents')

def test_every_setting_of_a_recipe_reaches_what_it_names(tmp_path):
    "Each value differs from its default, and is read from the stages, their loaders and their models"
    df = tiny_df().rename(columns={'text':'review','label':'kind','is_valid':'held'})
    fine_tune_lm(df, tiny_arch('bert'), tmp_path/'start', tok=tiny_tok('bert'), text_col='review', valid_col='held', epochs=.1, bs=8, seq_len=32)
    recipe = Recipe().replace(run=dict(compare=None, seeds=(7,)), data=dict(text_col='review', label_col='kind', valid_col='held'), model=dict(arch=str(tmp_path/'start')),
        lm=dict(objective='whole_word_mlm', mask_rate=.3, epochs=.5, lr=1e-3, schedule='head_only', bs=5, seq_len=24, packing='full-sentences', valid_pct=.3, anneal='linear_warmup'),
        classifier=dict(epochs=.7, lr=3e-3, schedule='head_only', bs=6, discr=1.5, hidden_states='mix', adapters='bitfit', aux_lm=.25, max_len=11, pool='mean', truncation='tail', calibrate=True))
    report = ulmfit(df, recipe=recipe, path=tmp_path/'run')
    lm,clf = (read_stage(tmp_path/'run'/o) for o in ('target_lm','classifier'))
    assert (lm['lr'], lm['seed'], lm['recipe']['packing'], lm['recipe']['anneal'], lm['recipe']['objective'], lm['recipe']['mask_rate'])==(1e-3, 7, 'full-sentences', 'linear_warmup', 'whole_word_mlm', .3)
    assert sum(lm['recipe']['schedule']['epochs'])==pytest.approx(.5) and sum(clf['recipe']['schedule']['epochs'])==pytest.approx(.7)
    n = len(clf['recipe']['schedule']['factors'][0])
    assert np.allclose(clf['recipe']['schedule']['factors'], (head_only(n)*discriminative_lrs(n, 1.5)).factors)
    learn = report.learner
    assert learn.dls.train.bs==6 and learn.dls.one_batch()[0].shape[1]<=11 and learn.model.head.layers[0].normalized_shape==(32,) # a mean, not three vectors
    assert learn.model.task.temperature and read_bundle(tmp_path/'run'/'classifier').task.temperature==learn.model.task.temperature
    assert len(learn.model.mix.s)==4 and learn.model.adapters['method']=='bitfit' and learn.auxiliary_lm.weight==.25
    assert sorted(o.name for o in (tmp_path/'run').iterdir() if o.is_dir())==['classifier','target_lm'] and len(learn.dls.valid_ds)==int(df.held.sum())
    assert 'start (target LM)'==report.stages[0].parent and 'hidden_states mix' in (tmp_path/'run'/'report.md').read_text()

@pytest.mark.parametrize('classifier,test,words', [(dict(hidden_states=(7,)), None, 'index|range'), ({}, tiny_df().assign(label='new'), 'new')])
def test_mistakes_of_the_third_stage_are_found_before_stage_1(tmp_path, monkeypatch, classifier, test, words):
    def never(*args, **kwargs): raise AssertionError('a stage is trained')
    monkeypatch.setattr(run_module, 'pretrain_lm', never)
    recipe = Recipe().replace(general=dict(size=2, width=64), classifier=classifier)
    with pytest.raises((ValueError,IndexError,KeyError), match=words): ulmfit(tiny_df(), test=test, recipe=recipe, path=tmp_path/'run')

def test_what_a_run_is_compared_with(tmp_path, run):
    "Each arm of the comparison has its directory, its parent and its gain; TF-IDF is for classes"
    recipe = Recipe().replace(run=dict(compare=('random','general','tfidf')), lm=dict(epochs=.5, bs=8, seq_len=16), classifier=dict(epochs=.5, bs=8, max_len=16))
    fit = lambda df,**kwargs: ulmfit(df, arch=str(run[0]/'arch'), recipe=recipe.replace(**kwargs), path=tmp_path/'run')
    report = fit(tiny_df())
    assert [o.name for o in report.stages]==['target LM','classifier','classifier from the general LM','classifier from random weights','TF-IDF']
    assert report.gains().what.tolist()==['general LM','target LM','against TF-IDF','target LM','all layers']
    assert {'classifier','classifier_general','classifier_random'} <= {o.name for o in (tmp_path/'run').iterdir()} and report.learner is report.stages[1].learner
    assert report.stages[3].parent!=report.stages[2].parent and [*report.table().loc['TF-IDF',['from','tokens','epochs','lr']]]==['']*4
    flat = fit(tiny_df(), lm=dict(objective='none'))
    assert [o.name for o in flat.stages]==['classifier','classifier from random weights','TF-IDF'] and flat.gains().what.tolist()==['general LM','against TF-IDF','all layers']
    several = fit(tiny_df().assign(label=lambda o: o.label+'; '+o.label.str[:1]), lm=dict(objective='none'))
    assert [o.name for o in several.stages]==['classifier','classifier from random weights','TF-IDF']
    numbers = fit(tiny_df().assign(label=lambda o: o.text.str.len()+.5), lm=dict(objective='none'))
    assert [o.name for o in numbers.stages]==['classifier','classifier from random weights']

def test_the_head_of_hugging_face(tmp_path, run):
    recipe = Recipe().replace(lm=dict(objective='none'), classifier=dict(epochs=.2, bs=8, head='hf', max_len=16))
    ulmfit(tiny_df(), arch=str(run[0]/'arch'), recipe=recipe, path=tmp_path/'run')
    _,info = AutoModelForSequenceClassification.from_pretrained(tmp_path/'run'/'classifier', output_loading_info=True)
    assert not info['missing_keys']

@pytest.mark.parametrize('settings,words', [(dict(hidden_states=(-1,9)), '`hidden_states` 9 is out of range; expected -'), (dict(adapters='loar'), 'lora'), (dict(schedule='gradual'), 'gradual_unfreeze'),
                                            (dict(task='singel'), 'did you mean single')])
def test_what_cannot_work_is_found_before_a_language_model_is_trained(tmp_path, monkeypatch, run, settings, words):
    def never(*args, **kwargs): raise AssertionError('a language model is trained')
    monkeypatch.setattr(run_module, 'fine_tune_lm', never)
    with pytest.raises((ValueError,IndexError), match=words): ulmfit(tiny_df(), arch=str(run[0]/'arch'), recipe=dict(classifier=settings), path=tmp_path/'run')
    assert not (tmp_path/'run').exists()

@pytest.mark.parametrize('recipe,words', [(dict(epochs=3), "'epochs' is unknown"), (dict(clasifier={}), 'did you mean classifier')])
def test_a_recipe_has_sections(recipe, words):
    with pytest.raises(ValueError, match=words): Recipe().replace(**recipe)

def test_intervals_of_several_seeds_cover_the_truth_and_are_no_wider_than_they_need_to_be():
    "300 rows, 3 seeds: the rows differ by .5, the seeds of a row by .5; the standard error of the mean follows"
    rng,true,se = np.random.default_rng(0),.1,((.5**2+.5**2/3)/300)**.5
    got = [paired_bootstrap(true+rng.normal(0, .5, 300)+rng.normal(0, .5, (3,300)), np.zeros((3,300)), n=400) for _ in range(300)]
    _,low,high = np.array(got).T
    assert .92<=((low<=true)&(true<=high)).mean()<=.98 and (high-low).mean()==pytest.approx(2*1.96*se, rel=.05)

def test_one_answer_for_all_rows_is_warned_of(run, caplog):
    df = tiny_df()
    stage = fine_tune_classifier(df, str(run[0]/'arch'), epochs=.1, lr=1e-9, bs=8)
    said = {str(o) for o in evaluate(stage.learner)[1]}
    assert stage.majority==pytest.approx(df[df.is_valid].label.value_counts(normalize=True).max())
    assert ('are predicted as' in caplog.text) or len(said)>1
    assert 'largest class' in stage.table()

def test_trec_with_minilm(data_dir):
    df = pd.read_csv(data_dir/'trec'/'train.csv', keep_default_na=False)[:900]
    assert fine_tune_classifier(df, 'minilm', epochs=2, lr=3e-4, max_len=32).metrics['accuracy']>.75 # the largest class is 0.23

def said(caplog, df, *args, **kwargs):
    "The warnings of a training"
    caplog.clear()
    with caplog.at_level('WARNING', 'fastformers'): fine_tune_classifier(df, *args, max_len=32, **kwargs)
    return ' '.join(o.getMessage() for o in caplog.records)

def test_unlabelled_texts_that_nothing_reads_are_said(caplog, monkeypatch):
    def stop(self): raise InterruptedError
    monkeypatch.setattr(run_module._Run, 'check', stop)
    for sections,said in ((dict(lm=dict(objective='none')), True), ({}, False)):
        caplog.clear()
        with pytest.raises(InterruptedError): ulmfit(tiny_df(), ['a new text'], arch='wiki-mini', recipe=Recipe().replace(**sections))
        assert ('`unlabelled` is not used' in caplog.text)==said

@pytest.mark.parametrize('arch,sections,said', [('minilm',{},True), ('wiki-mini',{},False), ('minilm',dict(lm=dict(objective='none')),False)])
def test_what_stage_2_can_bring_is_said_before_it_trains(caplog, monkeypatch, arch, sections, said):
    def stop(self, *args, **kwargs): raise InterruptedError
    monkeypatch.setattr(run_module._Run, 'train', stop)
    with pytest.raises(InterruptedError), caplog.at_level('INFO', 'fastformers.ulmfit'): ulmfit(intents(60), ['a new text'], arch=arch, recipe=Recipe().replace(**sections))
    assert ('have the same label with a kappa of 0.' in caplog.text)==said

@pytest.mark.exact
@pytest.mark.parametrize('more', ['', ';often'])
def test_a_linear_model_of_very_many_classes_is_not_waited_for(more, monkeypatch):
    monkeypatch.setattr('fastformers.learner.judge.linear_scores', lambda *_: pytest.fail('takes minutes'))
    def rows(n): return Rows(pd.DataFrame(dict(text=[f'text {i}' for i in range(4*n)], label=[f'class {i%n}{more}' for i in range(4*n)]))).hold_out()
    many = rows(600)
    assert linear_rival(many.task, many.part(False), many.part(True)) is None
    few = rows(100)
    with pytest.raises(pytest.fail.Exception): linear_rival(few.task, few.part(False), few.part(True))

def test_a_verdict_says_what_went_wrong_and_is_silent_on_a_good_run(caplog):
    asked = intents(240)
    assert not said(caplog, intents(120), 'minilm', epochs=2)
    assert 'training brought nothing over the frozen probe; 14 steps are few' in said(caplog, intents(120), 'minilm', epochs=2, lr=1e-6)
    few = said(caplog, asked, 'wiki-mini', head_init='random', epochs=40/12, lr=1e-5)
    assert 'is below that of the TF-IDF' in few and 'the loss has hardly moved' in few and '40 steps are few' in few
    assert 'all validation rows are predicted as' in said(caplog, asked[:150], 'wiki-mini', head_init='random', epochs=1, lr=1.)
    assert 'so the probe is kept' in said(caplog, asked[:150], 'wiki-mini', epochs=1, lr=.5)
    with pytest.raises(ValueError, match='`lr` 1000 is out of range'): said(caplog, asked, 'wiki-mini', lr=1e3)
    blank = asked[:120].assign(text=asked.text.where(asked.index%3>0, ' '))
    assert '40 of 120 texts are blank' in said(caplog, blank, 'wiki-mini', epochs=1)

def test_a_tagger_is_compared_with_words(tmp_path, caplog):
    rows = pd.DataFrame({'text':[o.split() for o in intents(200).text]})
    rows['label'] = [['B-WH' if w in ('what','how','is') else 'O' for w in o] for o in rows.text]
    said_of = said(caplog, rows, 'wiki-mini', tmp_path/'tagger', epochs=.5, lr=1e-5)
    assert 'span F1 of a text' in said_of and 'is below that of the TF-IDF' in said_of
    assert from_hf(tmp_path/'tagger_tfidf')(['what is it'])[0][0]['text']=='what'

def test_classes_that_only_test_rows_have_count_as_errors(caplog):
    asked = intents(240)
    rare = asked.label.unique()[0]
    with caplog.at_level('WARNING', 'fastformers'):
        stage = fine_tune_classifier(asked[asked.label!=rare], 'wiki-mini', test=asked, epochs=.2, max_len=32)
    assert f'training has no row of {rare}' in caplog.text
    assert stage.test_score.shape==(240,) and not stage.test_score[(asked.label==rare).to_numpy()].any()

class Spoil(Callback):
    "Spoil the loss from the fifth step on"
    def after_loss(self):
        if self.training and self.iter>3: self.learn.loss_grad = self.learn.loss = self.loss*float('nan')

def test_a_loss_that_is_no_number_ends_the_training(tmp_path, caplog):
    rows = intents(120)
    with pytest.raises(ValueError, match='the loss is nan in step 5 of epoch 0'):
        fine_tune_lm(rows.text.tolist(), 'wiki-mini', bs=8, resume=tmp_path/'kept', cbs=Spoil())
    kept = fine_tune_classifier(rows, 'wiki-mini', max_len=32, cbs=Spoil())
    assert kept.probe_kept and kept.metrics==kept.before and 'so the probe is kept' in caplog.text

def test_one_long_text_is_read_in_windows_and_costs_no_more_steps():
    rows = intents(120)
    rows.loc[3,'text'] = ' '.join(rows.text)
    stage = fine_tune_classifier(rows, 'wiki-mini', epochs=1)
    tok = tokenizer_of(stage.learner.dls)
    assert (tok.max_len,tok.windows)==(128,16) and stage.learner.plan()['epochs']==150/len(stage.learner.dls.train)

def test_no_epochs_are_the_probe_alone(tmp_path):
    rows = dict(df=intents(120), arch='wiki-mini', max_len=32, epochs=0.)
    stage = fine_tune_classifier(path=tmp_path/'probe', refit=True, **rows)
    assert stage.before==stage.metrics and stage.lr==0 and not stage.losses and (stage.table()[['epochs','lr']]=='').all(None)
    assert from_hf(tmp_path/'probe')('move money to my savings')[0]['label'] in set(rows['df'].label)
    with pytest.raises(ValueError, match='`epochs` 0 is for the probe alone'): fine_tune_classifier(head_init='random', **rows)

def test_numbers_train_again_on_all_rows_with_one_row_held_out(tmp_path):
    rows = intents(60).assign(label=lambda o: o.text.str.len()/10)
    stage = fine_tune_classifier(rows, 'wiki-mini', tmp_path/'numbers', head_init='random', epochs=1, max_len=32, refit=True)
    assert set(stage.metrics)=={'loss','rmse','pearsonr'} and from_hf(tmp_path/'numbers')('a text')[0]['label']=='label'

def test_a_classifier_trained_again_keeps_the_figures_of_its_validation_rows(tmp_path):
    rows = intents(120)
    stage = fine_tune_classifier(rows, 'wiki-mini', tmp_path/'all', test=rows[:50], epochs=1, max_len=32, refit=True, calibrate=True)
    about = read_bundle(tmp_path/'all')
    assert about.rows=={'training':119, 'validation':24} and about.scores==pytest.approx(stage.metrics) and stage.test!=stage.metrics
    assert from_hf(tmp_path/'all').task.temperature
    stage = fine_tune_classifier(rows, 'wiki-mini', test=rows[:50], epochs=1, max_len=32)
    stage.learner.to_hf(tmp_path/'tried')
    assert read_bundle(tmp_path/'tried').scores['accuracy']==pytest.approx(stage.metrics['accuracy'])

@pytest.mark.exact
def test_tfidf_is_handed_out_where_it_is_better(tmp_path):
    stage = fine_tune_classifier(intents(240), 'wiki-mini', tmp_path/'net', head_init='random', epochs=.2, lr=1e-5, max_len=32)
    better = from_hf(tmp_path/'net_tfidf')
    assert type(better).__name__=='TextBaseline' and better('move money to my savings')[0]['label'] in better.labels
    assert stage.path==tmp_path/'net' and not stage.cross_validated
    few = fine_tune_classifier(intents(60), 'wiki-mini', tmp_path/'few', epochs=.2, max_len=32)
    assert .2<few.cross_validated<1 and 'probe, five folds' in few.table() and not (tmp_path/'few_tfidf').exists()

def test_a_head_of_hugging_face_starts_as_asked():
    rows = intents(60)
    assert fine_tune_classifier(rows, 'wiki-mini', head='hf', head_init='probe', epochs=1, max_len=16).score_before is not None
    with pytest.raises(ValueError, match="leave out head='hf'"):
        fine_tune_classifier(rows, 'wiki-mini', head='hf', head_init='contrastive', epochs=1, max_len=16)

def test_several_labels_are_compared_and_may_be_missing_in_training(caplog):
    rows = intents(120)
    rows['label'] = rows.label+rows.text.str.len().gt(40).map({True:';long', False:''})
    test = rows.head(20).assign(label=lambda d: d.label+';new')
    with caplog.at_level('INFO', 'fastformers'):
        stage = fine_tune_classifier(rows, 'wiki-mini', test=test, epochs=1, max_len=32)
    assert 'training has no row of new: 20 of 20 test rows have it' in caplog.text
    assert 'F1 of a text' in caplog.text and 'TF-IDF' in caplog.text and 0<stage.test_score.mean()<1
    with pytest.raises(ValueError, match='none of the labels of the test rows: new'):
        fine_tune_classifier(rows, 'wiki-mini', test=test.assign(label='new;new'), epochs=1)

def test_pairs_that_are_compared_are_read_one_by_one_and_others_together(tmp_path, caplog):
    texts = intents(41).text.tolist()
    pairs = pd.DataFrame(dict(a=texts[:-1], b=[o if i%2 else f'please {t}' for i,(t,o) in enumerate(zip(texts, texts[1:]))]))
    def reads(label, **kwargs):
        rows = Rows(pairs.assign(label=label), text_col=['a','b'])
        rows.is_valid = np.zeros(len(rows), bool)
        return with_reading(TaskConfig(**kwargs), rows, 'minilm', 'minilm')[0].pairing
    near = np.where(pairs.index%2, 1., 4.5)+np.random.default_rng(0).random(40)/10
    assert reads(near)=='siamese' and reads(near, pairing='together')=='together'
    assert reads(near, epochs=0) is None # the probe alone
    assert reads(pairs.b.str.len()+.5) is None
    same = np.where(pairs.index%2, 'other', 'same')
    assert reads(same)=='siamese' and reads(same, epochs=0)=='siamese' and reads(same, head_init='random') is None
    assert reads(np.where(pairs.index<3, 'a', 'b')) is None # too few rows of a class to tell
    assert reads(intents(41).label[:-1].tolist()) is None # the class of the first text
    def fit(label): return fine_tune_classifier(pairs.assign(label=label), 'minilm', text_col=['a','b'], max_len=32, epochs=.2)
    assert fit(same).settings['pairing']=='siamese'
    with pytest.raises(ValueError, match='only the class'): fit(['a']*40)
    recipe = Recipe().replace(model=dict(arch='minilm'), lm=dict(objective='none'), classifier=dict(epochs=.2, max_len=32), run=dict(compare=()))
    frame = pairs.assign(label=near)
    first = ulmfit(frame, recipe=recipe, path=tmp_path/'run', text_col=['a','b'])
    (tmp_path/'run'/'report.md').unlink()
    again = ulmfit(frame, recipe=recipe, path=tmp_path/'run', text_col=['a','b'], resume=True)
    assert again.learner is not None and tokenizer_of(again.learner.dls).pairing=='siamese' # as it was trained
    assert np.allclose(first.final[0].score, evaluate(again.learner)[1], atol=1e-4)

def test_numbers_are_compared_with_their_mean_and_tfidf(caplog):
    rows = intents(150)
    rows['label'] = rows.text.str.len()+.5
    with caplog.at_level('INFO', 'fastformers'): stage = fine_tune_classifier(rows, 'wiki-mini', epochs=1, max_len=32)
    said = re.search(r'squared error ([\d.]+).*mean ([\d.]+), TF-IDF ([\d.]+), frozen probe ([\d.]+)', caplog.text)
    score,mean,tfidf,probe = map(float, said.groups())
    y,held = rows.label,Rows(rows).hold_out().is_valid
    assert abs(mean-((y[held]-y[~held].mean())**2).mean()/y[~held].var(ddof=0))<.01
    assert abs(score+stage.score.mean())<.01 and abs(probe+stage.score_before.mean())<.01 and tfidf>0
