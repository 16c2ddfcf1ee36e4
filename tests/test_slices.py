"Slices and checks find what was planted in data and classifiers, and name nothing where there is nothing"
import numpy as np, pandas as pd, pytest, torch
from fastformers.data.block import classifier_dls
from fastformers.inference.answers import BasePredictor
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.predictor import Ensemble
from fastformers.interpret import attribution # `explain`
from fastformers.interpret.checks import Check, all_checks, check, checks, identity_gaps, typo
from fastformers.interpret.slices import against_rest, conflicting_duplicates, fixed_broken, label_issues, slices
from fastformers.learner.core import classifier_learner
from fastformers.learner.evaluate import class_scores, score_rows
from fastformers.learner.save import as_predictor
from fastformers.tasks.core import tasks
from fastformers.testing import tiny_arch, tiny_df, tiny_tags, tiny_tok
from fastformers.text.corpora import intents
from fastformers.ulmfit.stage import fine_tune_classifier

class Fake(BasePredictor):
    "Give the label number `answer(text)` the score .9"
    pairs = None
    def __init__(self, answer, labels=('no','yes')): self.answer,self.task = answer,tasks['single'](labels)
    def scores(self, texts, bs=64):
        res = torch.full((len(texts), len(self.labels)), .1/(len(self.labels)-1))
        for i,o in enumerate(texts): res[i,int(self.answer(o))] = .9
        return res

vocab = np.array([f'w{chr(97+i)}{chr(97+j)}' for i in range(5) for j in range(8)])
def sentences(n, seed):
    "Random texts of five to ten words, with random labels"
    rng = np.random.default_rng(seed)
    return pd.DataFrame(dict(text=[' '.join(rng.choice(vocab, rng.integers(5, 11))) for _ in range(n)], label=rng.choice(['no','yes'], n)))

def fails_on(df, wrong):
    "A classifier that gives each text of `df` its label, but where `wrong`"
    right = {t:l=='yes' for t,l in zip(df.text, df.label)}
    wrong = {t for t,w in zip(df.text, wrong) if w}
    return Fake(lambda o: right[o]!=(o in wrong))

# slices

def test_an_interval_and_a_test_by_hand():
    "Newcombe 1998, table II: 56 of 70 against 48 of 80"
    score = np.r_[np.ones(56), np.zeros(14), np.ones(48), np.zeros(32)]
    o = against_rest(score, np.arange(70))
    assert np.allclose([o['score'],o['difference'],o['low'],o['high']], [.8,.2,.0524,.3339], atol=1e-4) and o['p']>.99
    assert np.isclose(against_rest(score, np.arange(70,150))['difference'], -.2)

def test_slices_by_hand():
    df = pd.DataFrame(dict(text=[f'No. {i}' if i%2 else 'why not?' for i in range(40)], label=['no']*20+['yes']*20, shop=['a','b','b','b']*10))
    table = slices(Fake(lambda o: o[0]=='w'), df, by=['shop']).set_index('slice')     # right: yes where even, no where odd
    assert table.loc['label = no',['rows','score','difference']].tolist()==[20,.5,0] and not table.below.any()
    assert table.loc['has digits','rows']==table.loc['ends with punctuation','rows']==table.loc["word 'why'",'rows']==20
    assert table.loc['shop = a',['rows','score']].tolist()==[10,.5] and 'label = maybe' not in table.index
    right = slices(Fake(lambda o: o[0]=='w'), df.assign(label=['yes','no']*10+['yes','yes']*10), by={'even':'^w'}).set_index('slice')
    assert right.loc['even','score']==1 and right.loc['has digits','score']==.5 and right.index[0] in ('has digits',"word 'no'","word '.'") and right.below.iloc[0]

def test_a_planted_failure_is_the_worst_slice():
    for seed in range(5):
        df = sentences(500, seed)
        rng = np.random.default_rng(seed)
        there = df.text.str.contains('wbc')
        table = slices(fails_on(df, there & (rng.random(500)<.9) | (rng.random(500)<.05)), df)
        assert table.slice[0]=="word 'wbc'" and table.below[0] and table.below.sum()<=3

def test_a_planted_failure_in_a_column_is_found():
    df = sentences(300, 0).assign(shop=['a','b','c']*100, old=np.arange(300)%4==0, price=np.arange(300.))
    assert slices(fails_on(df, df.shop=='b'), df, by='shop').slice[0]=='shop = b'
    assert slices(fails_on(df, df.old), df, by=['shop','old']).slice[0]=='old = True'
    assert slices(fails_on(df, df.price<70), df, by='price').slice[0]=='price 0 to 74'
    assert slices(fails_on(df, df.text.str.match('wa')), df, by={'begins':'^wa'}).slice[0]=='begins'

def test_random_errors_are_seldom_named():
    "No slice differs: in at most one of twenty sets a slice may be named"
    rng,n = np.random.default_rng(0),100
    def named(seed):
        df = sentences(300, seed)
        return slices(fails_on(df, rng.random(300)<.3), df).below.any()
    assert sum(map(named, range(n)))<=.05*n+3*(.05*.95*n)**.5

def test_each_test_alone_has_its_level():
    "Without the correction about a twentieth of the p-values are below .05: the tests are not so careful that they find nothing"
    rng = np.random.default_rng(0)
    for score,low in ((lambda: rng.random(400)<.7, .025), (lambda: rng.normal(size=400), .03)):
        p = np.array([against_rest(score().astype(float), np.arange(80))['p'] for _ in range(600)])
        assert low<(p<.05).mean()<.05+3*(.05*.95/600)**.5

def test_a_shortcut_is_found():
    df = intents(300)
    leaky = df.assign(text=df.text.where(df.label!='banking', df.text+' zq'))
    shortcut = TextBaseline.fit(leaky.text, leaky.label)
    rng,test = np.random.default_rng(0),intents().query('split=="test"').sample(1000, random_state=0)
    test = test.assign(text=test.text.where(rng.random(1000)<.8, test.text+' zq'))
    table = slices(shortcut, test)
    assert "word 'zq'" in [*table.slice[table.below]]
    assert checks(shortcut, test, which={'zq': lambda o: o+' zq'}, most=200).failures[0]>.2

def several_or_numbers(task):
    "Rows with several labels or a number, and a model of them"
    df = intents(300)
    if task=='regression': return df.assign(label=df.text.str.len().astype(float)), lambda d: d.label
    return df.assign(label=df.label+(df.text.str.len()>40).map({True:';long',False:';short'})), lambda d: d.label.str.split(';')

@pytest.mark.parametrize('task', ['multi','regression'])
def test_several_labels_and_numbers(task):
    df,labels = several_or_numbers(task)
    model = TextBaseline.fit(df.text[:200], labels(df)[:200], task)
    table = slices(model, df[200:])
    assert np.isfinite(table[['score','low','high','p']]).all(axis=None) and (table.low<table.high).all() and table.difference.between(table.low, table.high).all()
    assert table.slice.isin(['label = long'] if task=='multi' else [o for o in table.slice if o.startswith('target ')]).any()
    says = 'any of the labels a text' if task=='multi' else r'regression \(a number a text\)'
    with pytest.raises(TypeError, match='one label a row, got .*'+says): label_issues(None, df)
    if task=='multi':
        assert checks(model, df, most=50).rows.max()==50 and fixed_broken(model, model, df)[0].p==1
        assert checks(model, df, which={'!': Check('!', lambda o: o+' !', 'lower', ('long',))}).rows[0]>0
        return
    with pytest.raises(TypeError, match='classes'): checks(model, df)
    with pytest.raises(TypeError, match='paired_bootstrap'): fixed_broken(model, model, df)

def test_odd_rows_give_a_table_or_a_sentence():
    df = sentences(60, 0)
    good = fails_on(df, [False]*60)
    no_errors = slices(good, df)
    assert (no_errors.score==1).all() and not no_errors.below.any()
    assert 'blank' in [*slices(Fake(lambda o: not o), df.assign(text=np.where(df.index<15, '', df.text))).slice]
    assert not slices(Fake(lambda o: 0), df.assign(label='no')).slice.str.startswith('label').any()           # one class: no slice
    for rows in (df[:1], df[:15]):
        with pytest.raises(ValueError, match='hold no slice with 10 rows'): slices(good, rows)
    for rows,kw,words in ((df[:0], {}, 'no rows'), (df, dict(text_col='txt'), 'did you mean text'), (df, dict(by='shop'), '`by` .shop. is not a column'),
                          (df.assign(label='maybe'), {}, "no label 'maybe'; its labels are 'no', 'yes'"), (df.assign(label=None), {}, 'no label in column')):
        with pytest.raises(ValueError, match=words): slices(good, rows, **kw)

# every kind of predictor

@pytest.fixture(scope='module')
def learn(): return classifier_learner(classifier_dls(tiny_df(), tiny_tok('bert'), bs=16, max_len=40, device='cpu'), tiny_arch('bert'))

def test_a_learner_is_its_predictor(learn):
    df,one = tiny_df(),as_predictor(learn)
    pd.testing.assert_frame_equal(slices(learn, df, least=5), slices(one, df, least=5))
    pd.testing.assert_frame_equal(checks(learn, df), checks(one, df))
    pd.testing.assert_frame_equal(label_issues(learn, df), label_issues(one, df))
    assert fixed_broken(learn, one, df)[0].fixed==0 and len(slices(Ensemble([one,one]), df, least=5))==len(slices(one, df, least=5))

def test_tags_have_no_slices():
    tags = classifier_learner(classifier_dls(tiny_tags(), tiny_tok('bert'), bs=8, device='cpu'), tiny_arch('bert'))
    for f in (slices, checks):
        with pytest.raises(TypeError, match='labels of whole texts'): f(tags, tiny_tags())

def test_pairs():
    df = sentences(60, 0).assign(other='please, now')
    model = TextBaseline.fit([*zip(df.text, df.other)], df.label)
    assert len(slices(model, df, text_col=['text','other'])) and conflicting_duplicates(df, ['text','other']).empty
    table = checks(model, df, text_col=['text','other'], which=['no punctuation','typo'])
    assert {*table.rows}=={60} and label_issues(model, df, ['text','other']).columns.size==5

# what another classifier mends, and what the data say

def test_mcnemar_by_hand():
    df = pd.DataFrame(dict(text=[*map(str, range(20))], label='yes'), index=range(100, 120))
    a,b = (Fake(lambda o, bad=bad: int(o) not in bad) for bad in (range(7), (9,)))
    counts,rows = fixed_broken(a, b, df)
    assert [*counts]==[7,1,(1+8)*2/2**8] and [*rows.index]==[*range(100,107),109] and [*rows.columns]==['text','label','a','b','fixed']
    assert rows.loc[100].tolist()==['0','yes','no','yes',True] and rows.loc[109].tolist()==['9','yes','yes','no',False]
    assert fixed_broken(a, a, df)[0].p==1 and not len(fixed_broken(a, a, df)[1])

def wrong_labels(n, k, seed=0):
    "Utterances of which the first `k` have a wrong label"
    df = intents(n)
    rng = np.random.default_rng(seed)
    other = [rng.choice(sorted({*df.label}-{o})) for o in df.label[:k]]
    return df.assign(label=[*other, *df.label[k:]])

def test_planted_wrong_labels_come_first():
    df = wrong_labels(1500, 60)
    found = label_issues(None, df)
    assert (found.index[:30]<60).mean()>.7 and (found.index<60).sum()>=40 and (found.score>found.given).all()      # by chance 60 of 1,500: .04
    assert (found.label!=found.other).all() and found.score.is_monotonic_decreasing

def test_vectors_are_read_where_there_are_some():
    df = wrong_labels(300, 15)
    class Vectors(Fake):
        def vectors(self, texts): return torch.nn.functional.one_hot(torch.tensor([true[o] for o in texts])).float()
    true = dict(zip(df.text, pd.factorize(intents(300).label)[0]))
    assert sorted(label_issues(Vectors(len), df).index)==[*range(15)]

def test_labels_that_cannot_be_doubted():
    df = sentences(30, 0)
    for rows,words in ((df.assign(label='no'), 'two labels or more with two rows each'), (df[:1], 'two labels or more with two rows each'), (df.assign(text=''), 'empty vocabulary'), (df.assign(label=None), 'no label in column')):
        with pytest.raises(ValueError, match=words): label_issues(None, rows)
    assert len(label_issues(None, df.assign(label=['yes','yes',*['no']*27,'rare'])))                 # a class with one row is doubted, not an error

def test_conflicts_across_blocks():
    df = sentences(90, 0).assign(label='no')
    df.loc[80] = df.text[3].capitalize()+'.','yes'
    df.loc[82] = df.text[5]+' wa','yes'
    df.loc[81] = df.text[4],'no'
    for block in (1, 7, 512):
        found = conflicting_duplicates(pd.concat([df, df[:2].assign(text=None), df[:2].assign(label=None)]), block=block)
        assert [*found.index]==[3,5] and found.iloc[0].tolist()[:4]==[df.text[3],'no',df.text[80],'yes'] and .9<found.cosine.iloc[1]<1
    assert conflicting_duplicates(df[:10]).empty and list(conflicting_duplicates(df[:1]))==list(found)
    with pytest.raises(ValueError, match='empty vocabulary'): conflicting_duplicates(df.assign(text=' '))

# checks

def test_failures_by_hand():
    df = pd.DataFrame(dict(text=['Abc','abc','12',''] * 5))
    table = checks(Fake(lambda o: o[:1].isupper()), df, which=['lower case','upper case','other numbers']).set_index('check')
    assert table.loc['lower case',['rows','failures']].tolist()==[5,1] and table.loc['upper case',['rows','failures']].tolist()==[10,.5]
    assert table.loc['other numbers',['rows','failures']].tolist()==[5,0] and table.examples['lower case']==[('Abc','abc','yes','no')]*2
    assert np.allclose(table.loc['upper case',['low','high']].astype(float), [.2366,.7634], atol=1e-4)        # Wilson 1927

def test_a_text_fails_once_whatever_many_changes():
    table = checks(Fake(lambda o: len(o)%2), pd.DataFrame(dict(text=['a','bb'])), which={'longer': lambda o: [o+'x', o+'y', o+'zz']})
    assert table[['rows','failures']].values.tolist()==[[2,1]] and len(table.examples[0])==2 and {o[0] for o in table.examples[0]}=={'a','bb'}

def test_a_negation_lowers_the_score_of_the_labels_that_are_named():
    df = pd.DataFrame(dict(text=['it is good','it is bad','good']))
    deaf,clever = Fake(lambda o: 'good' in o),Fake(lambda o: ('good' in o)!=('not' in o))
    assert 'negation' not in [*checks(deaf, df).check]
    run = lambda o, labels: checks(o, df, which='negation', labels=labels)[['rows','failures']].values.tolist()
    assert run(deaf, 'yes')==[[1,1]] and run(clever, 'yes')==[[1,0]] and run(deaf, ['yes','no'])==[[2,1]]
    praise = {'praise': Check('praise', lambda o: o+' good', 'higher', ('yes',))}
    assert checks(deaf, df, which=praise).rows[0]==1 and checks(deaf, df, which=praise).failures[0]==0
    with pytest.raises(ValueError, match="'good' is no label; expected one of no, yes"): checks(deaf, df, labels=['good'])
    with pytest.raises(ValueError, match='did you mean typo'): checks(deaf, df, which='typos')

def test_a_check_of_your_own():
    @check('louder')
    def louder(text): return text+'!'
    try: assert checks(Fake(lambda o: '!' in o), sentences(20, 0), which='louder').failures[0]==1 and 'louder' in [*checks(Fake(lambda o: 0), sentences(9, 0)).check]
    finally: del all_checks['louder']

def test_changes_are_the_same_in_each_run_and_keep_what_they_should():
    for o in intents(200).text:
        for c in all_checks.values(): assert c.change(o)==c.change(o)
        new = typo(o)
        if new: assert sorted(new)==sorted(o) and sum(a!=b for a,b in zip(o, new))==2 and [w[:1] for w in o.split()]==[w[:1] for w in new.split()]

def test_gaps_between_groups_by_hand():
    table = identity_gaps(Fake(lambda o: 'old' in o), ['the {} one','a {} day'], dict(age='young old', colour='red blue'))
    assert table.kind.tolist()==['age','colour'] and np.allclose(table.gap, [.8,0]) and table.highest[0]!=table.lowest[0]

def test_without_a_mask_token():
    learn = classifier_learner(classifier_dls(tiny_df(), tiny_tok('llama'), bs=8, device='cpu'), tiny_arch('llama'))
    assert len(as_predictor(learn).explain('a film', method='integrated_gradients').words)==2

def test_a_check_without_its_labels_is_refused():
    with pytest.raises(ValueError, match='negation needs `labels`'): checks(Fake(lambda o: 1), tiny_df(), which='negation')

def test_scores_of_texts_that_it_was_trained_on_are_said_to_flatter(caplog):
    df = tiny_df()
    p = fine_tune_classifier(df, tiny_arch('bert'), tok=tiny_tok('bert'), epochs=1, bs=16, head_init='random').learner
    p = as_predictor(p)
    fresh = df.assign(text=df.text+' Anew.')
    for f in (slices, class_scores, score_rows, lambda p,df: fixed_broken(p, p, df)):
        for rows,said in ((df, True), (fresh, False)):
            caplog.clear(); f(p, rows)
            assert ('the scores are too good' in caplog.text)==said

def test_a_table_is_read_by_the_columns_of_training():
    "At all doors that take a predictor and a table"
    df = intents(120).rename(columns=dict(text='headline', label='topic'))
    train,new = df[:60],df[60:]
    p = TextBaseline.fit(train.headline.tolist(), train.topic.tolist(), tasks['single']())
    p.columns = dict(text_col='headline', label_col='topic')
    known = new[new.topic.isin(p.labels)]
    assert len(p.predict_frame(known)) == len(score_rows(p, known)[1]) == class_scores(p, known).support.iloc[:-1].sum()
    assert len(slices(p, known, least=5)) and 'fixed' in fixed_broken(p, p, known)[0] and len(p.shares(known.headline.tolist(), known))
    assert checks(p, known, which={'shout':str.upper}).rows[0]==len(known)
    with pytest.raises(ValueError, match="'headline' is not a column"): slices(p, known.rename(columns=dict(headline='title')))
