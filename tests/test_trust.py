"A score that cannot be trusted is not printed, or the sentence beside it says why"
from copy import copy
import numpy as np, pandas as pd, pytest, torch
from fastformers.compare.curve import label_curve
from fastformers.compare.encoders import compare_encoders
from fastformers.compare.entries import Entry, entries
from fastformers.compare.leaderboard import leaderboard
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.answers import BasePredictor
from fastformers.inference.predictor import from_hf
from fastformers.data.block import classifier_dls
from fastformers.learner.core import classifier_learner
from fastformers.learner.save import as_predictor
from fastformers.testing import tiny_arch, tiny_tok
from fastformers.text.corpora import intents
from fastformers.ulmfit.run import ulmfit
from fastformers.ulmfit.stage import fine_tune_classifier

pytestmark = pytest.mark.usefixtures('clock')
df = intents(120)
quick = dict(seeds=(1,2), minutes=1, log=lambda o: None)

def repeated():
    "Texts with labels by chance, each of them twice"
    rows = pd.DataFrame(dict(text=intents(60).text, label=np.random.default_rng(0).choice(['a','b'], 60)))
    return pd.concat([rows, rows], ignore_index=True)

def test_a_curve_scores_as_a_comparison_does(caplog):
    label_curve(repeated().assign(is_valid=np.arange(120)>=60), sizes=(20,), seeds=(1,), entries=['TF-IDF'])
    assert sum('60 of 60 validation texts are also in training' in o for o in caplog.messages)==1
    with pytest.raises(ValueError, match='scores that are not numbers'): label_curve(df, sizes=(40,), seeds=(1,), entries=[entry('NaN', [])])
    curve = label_curve(df, sizes=(40,), seeds=(1,), entries=[entry('order', []),entry('same', [])])
    assert np.array_equal(*curve.rows.hits) and curve.rows.hits[0].mean()>.2

@pytest.mark.parametrize('door', ['is_valid','group_col','test'])
def test_scored_texts_that_are_in_training_too_are_named(door, caplog):
    rows,half,how = repeated(),np.arange(120)>=60,{}
    if door=='is_valid': rows['is_valid'] = half
    if door=='group_col': rows['who'],how = [f'{i%60//6} {o}' for i,o in enumerate(half)],dict(group_col='who')
    if door=='test': rows,how = rows[:60],dict(test=rows[60:])
    board = leaderboard(rows, entries=['TF-IDF'], **quick, **how)
    assert sum('texts are also in training' in o for o in caplog.messages)==1
    assert board.known>30 and f'of which {board.known} have a text that it was trained on' in board.sentences()[0]
    caplog.clear()
    fresh = leaderboard(repeated()[:60], entries=['TF-IDF'], **quick)
    assert 'that it was not trained on' in fresh.sentences()[0] and not fresh.known and 'also in training' not in caplog.text

@pytest.mark.parametrize('door', ['is_valid','test','by chance'])
def test_scored_texts_with_other_punctuation_than_in_training_are_named(door, caplog):
    rows,half = repeated(),np.arange(120)>=60
    rows['text'] = [f'{o} !?' if b else o for o,b in zip(rows.text, half)]
    if door=='is_valid': rows['is_valid'] = half
    how = dict(test=rows[60:]) if door=='test' else {}
    if door=='test': rows = rows[:60]
    for f in (lambda: leaderboard(rows, entries=['TF-IDF'], **quick, **how), lambda: fine_tune_classifier(rows, tiny_arch('bert'), tok=tiny_tok(), epochs=.1, **how)):
        caplog.clear()
        f()
        assert sum('in training with other punctuation' in o for o in caplog.messages)==1 and 'also in training' not in caplog.text
    caplog.clear()
    leaderboard(repeated()[:60], entries=['TF-IDF'], **quick)
    assert 'punctuation' not in caplog.text

@pytest.mark.parametrize('value,says', [(np.nan,'1 of 20 rows have no label'), (np.inf,'1 of 20 rows have an infinite number')])
@pytest.mark.parametrize('door', ['stage','leaderboard','run','held out'])
def test_numbers_that_are_none_are_not_scored(door, value, says):
    rows = df.assign(label=df.text.str.len()*1.)
    test = rows[:20].assign(label=[value, *rows.label[1:20]])
    how = dict(epochs=.1, max_len=12)
    doors = dict(stage=lambda: fine_tune_classifier(rows, 'wiki-mini', test=test, **how), leaderboard=lambda: leaderboard(rows, test=test, entries=['TF-IDF'], **quick),
                 run=lambda: ulmfit(rows, test=test, arch='wiki-mini', recipe=dict(lm=dict(objective='none'))))
    doors['held out'] = lambda: fine_tune_classifier(test.assign(is_valid=np.arange(20)<5), 'wiki-mini', **how)
    with pytest.raises(ValueError, match=says): doors[door]()

def test_equal_texts_are_in_one_fold_of_an_encoder():
    assert compare_encoders(repeated(), ['wiki-mini']).accuracy.iloc[0]<.7 # labels by chance

def several(d): return d.label+';'+d.text.str.len().gt(40).map({True:'long',False:'short'})

class Other(BasePredictor):
    "Answers as TF-IDF does, with labels in another order, with a class less, or with scores that are not numbers"
    def __init__(self, rows, change):
        self.own = TextBaseline.fit(rows.texts, rows.labels, copy(rows.task))
        self.task,self.pairs,self.change = copy(self.own.task),False,change
        if change=='order': self.at = list(range(self.task.n_out))[::-1]
        elif change=='fewer': self.at = list(range(1, self.task.n_out))
        else: self.at = list(range(self.task.n_out))
        self.task.labels = [self.own.task.labels[i] for i in self.at]
        if change=='threshold': self.task.threshold = .9
    def scores(self, texts, bs=64):
        res = self.own.scores(self.as_list(texts))[:,self.at]
        if self.change=='NaN': res[::7] = torch.nan
        return res

def entry(change, seen): return Entry(change, lambda rows: seen.append(o := Other(rows, change)) or o)

@pytest.mark.parametrize('labels', ['single','two','multi'])
@pytest.mark.parametrize('change', ['order','fewer','threshold','same'])
def test_the_score_of_an_entry_is_that_of_its_answers(change, labels):
    rows,seen = df[df.label.isin([*df.label.unique()[:2]])] if labels=='two' else df,[]
    if labels=='multi': rows = rows.assign(label=several(rows))
    rows = rows.assign(is_valid=np.arange(len(rows))%3==0)
    if change=='fewer' and labels=='two': pytest.skip('one class would be left')
    board = leaderboard(rows, entries=[entry(change, seen),'TF-IDF'], **quick)
    assert change in board.scored, board.notes
    held,predictor = rows[rows.is_valid],seen[0]
    answers = [o['label'] for o in predictor(held.text.tolist())]
    def f1(a, b): return 2*len({*a}&{*b})/max(len({*a})+len({*b}), 1) if a or b else 1.
    true = [f1(a, b.split(';')) for a,b in zip(answers, held.label)] if labels=='multi' else [a==b for a,b in zip(answers, held.label)]
    assert board.score(change)==pytest.approx(np.mean(true), abs=1e-6)

def test_a_reversed_order_of_two_labels_reverses_their_threshold():
    seen = []
    class Both(Other):
        def __init__(self, rows):
            super().__init__(rows, 'order')
            self.task.threshold = .8
    rows = df[df.label.isin([*df.label.unique()[:2]])]
    rows = rows.assign(is_valid=np.arange(len(rows))%3==0)
    board = leaderboard(rows, entries=[Entry('both', lambda r: seen.append(o := Both(r)) or o)], **quick)
    held = rows[rows.is_valid]
    assert board.score('both')==pytest.approx(np.mean([o['label'] for o in seen[0](held.text.tolist())]==held.label))

def test_labels_that_the_rows_have_not_are_an_error_of_the_entry():
    def fit(rows): return TextBaseline.fit(rows.texts, ['new' if i==0 else o for i,o in enumerate(rows.labels)])
    board = leaderboard(df, entries=['TF-IDF',Entry('odd', fit)], **quick)
    assert 'has the labels new, which the rows do not have' in board.notes['odd'] and board.winner=='TF-IDF'

def test_scores_that_are_no_numbers_are_an_error_of_the_entry(caplog):
    board = leaderboard(df, entries=[entry('NaN', []),'TF-IDF'], **quick)
    assert 'rows have scores that are not numbers' in board.notes['NaN'] and 'NaN' not in board.scored and board.winner=='TF-IDF'

def mine(rows): return TextBaseline.fit(rows.texts, rows.labels, rows.task)

def test_an_entry_that_is_none_is_told_what_one_is(monkeypatch):
    with pytest.raises(TypeError, match="`entries` are names or `Entry`s"): leaderboard(df, entries=['TF-IDF',mine], **quick)
    monkeypatch.setitem(entries, 'mine', Entry('mine', mine))
    assert [*leaderboard(df, entries=[mine], **quick).scored]==['mine'] # the decorated function itself
    board = leaderboard(df, entries=['TF-IDF', Entry('odd', lambda rows: 'a pipeline')], **quick)
    assert board.notes['odd']=="failed: expected a predictor with a method `scores(texts)`, got 'a pipeline'"

def words(n):
    def fit(rows): return TextBaseline.fit(rows.texts, rows.labels, rows.task, max_terms=n)
    return fit

class Words:
    def __init__(self, most): self.most = most
    def fit(self, rows): return TextBaseline.fit(rows.texts, rows.labels, rows.task, max_terms=self.most)

def by_words(rows): return Words(bound).fit(rows)
bound = 0

@pytest.mark.parametrize('change', ['body','constant around it','function it calls','setting of its object','recipe','none'])
def test_a_comparison_that_goes_on_trains_changed_code_again(change, tmp_path, monkeypatch, caplog):
    def old(rows): return TextBaseline.fit(rows.texts, rows.labels, rows.task, max_terms=0)
    def new(rows): return TextBaseline.fit(rows.texts, rows.labels, rows.task)
    before,after = dict(fit=old),dict(fit=new)
    if change=='constant around it': before,after = dict(fit=words(0)),dict(fit=words(None))
    if change=='function it calls': before,after = dict(fit=by_words),dict(fit=by_words)
    if change=='setting of its object': before,after = dict(fit=Words(0).fit),dict(fit=Words(None).fit)
    if change=='recipe': before,after = dict(fit=new, recipe=dict(lm={})),dict(fit=new, recipe=dict(lm=dict(epochs=2.)))
    if change=='none': after = before
    run = dict(quick, path=tmp_path/'run')
    first = leaderboard(df, entries=[Entry('mine', **before)], **run)
    caplog.clear()
    if change=='function it calls': monkeypatch.setattr(f'{__name__}.bound', None)
    again = leaderboard(df, entries=[Entry('mine', **after)], resume=True, **run)
    assert sum('so it is trained again' in o for o in caplog.messages)==(change!='none')
    assert (again.score('mine')>first.score('mine')+.1)==(change not in ('none','recipe'))
    best = [o['label'] for o in from_hf(tmp_path/'run/best')(df.text.tolist())]
    assert (np.mean(best==df.label)>.5)==(change!='none')

def learner(arch=None, **kwargs):
    dls = classifier_dls(intents(60), tiny_tok('bert'), bs=8, device='cpu')
    return classifier_learner(dls, arch or tiny_arch('bert'), **kwargs)

@pytest.mark.parametrize('door', ['fit','fit_one_cycle','fit_schedule','a directory'])
def test_training_on_ends_the_temperature(door, tmp_path):
    learn = learner()
    learn.model.task.temperature = 3.
    if door=='a directory':
        learn = learner(learn.to_hf(tmp_path/'a'))
        assert learn.model.task.temperature==3
    with learn.no_bar(), learn.no_logging():
        learn.validate(); learn.get_preds()
        assert learn.model.task.temperature==3.                                # what only reads keeps it
        if door=='fit_schedule': learn.fit_schedule('full_tune', 1e-3, epochs=.5)
        elif door=='fit_one_cycle': learn.fit_one_cycle(1, 1e-3)
        else: learn.fit(1, 1e-3)
    assert learn.model.task.temperature is None
    assert as_predictor(learn).task.temperature is None

def test_a_temperature_is_not_praised_where_none_fits(caplog):
    rows = pd.DataFrame(dict(text=[f'{w} {w} film {i}' for i in range(20) for w in ('good','bad')], label=['a','b']*20))
    stage = fine_tune_classifier(rows, 'wiki-mini', epochs=0, calibrate=True, max_len=12)
    assert stage.score.mean()==1 and 'so no temperature fits' in caplog.text and not stage.chosen

@pytest.mark.parametrize('scale', [1e4,1e-4])
def test_a_temperature_at_its_bound_is_a_warning(scale, caplog):
    learn = learner()
    with torch.no_grad():
        for p in [*learn.model.head.parameters()][-2:]: p.mul_(scale)
    t = learn.calibrate()
    at_bound = not .05<t<20
    assert at_bound==('as far as `calibrate` goes' in caplog.text) and (scale<1 or at_bound)

def test_scores_of_candidates_do_not_depend_on_the_batch():
    rows = pd.DataFrame([dict(q=t, a='yes', b='no', c='it may be so' if i%2 else '', d='never' if i%3==0 and i%2 else '', label=i%2) for i,t in enumerate(df.text[:24])])
    dls = classifier_dls(rows, tiny_tok('bert'), text_col=['q','a','b','c','d'], task='choice', bs=8, device='cpu')
    predictor = as_predictor(classifier_learner(dls, tiny_arch('bert')))
    texts = [tuple(o for o in r if o) for r in rows[['q','a','b','c','d']].values]
    alone,together = [predictor.scores([t])[0] for t in texts],predictor.scores(texts)
    assert [len(o)-1 for o in texts]==[*map(len, alone)]==[*map(len, together)]
    for a,b in zip(alone, together): assert torch.allclose(a, b, atol=1e-5) and a.sum().item()==pytest.approx(1)
