"A budget in minutes is kept by all trainings together, whatever the machine does; the clock is one that the test moves"
import numpy as np, pandas as pd, pytest
from fastai.basics import Callback, defaults
from fastformers.compare.entries import Entry, OutOfTime, entries
from fastformers.compare.leaderboard import leaderboard
from fastformers.data.block import classifier_dls
from fastformers.callback.schedule import in_fit
from fastformers.inference.baseline import TextBaseline
from fastformers.learner.core import classifier_learner
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.text.corpora import intents
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm

df = intents(120)

@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp('body')/'tiny'
    fine_tune_lm(df, tiny_arch('bert', num_hidden_layers=1), path, tok=tiny_tok('bert'), epochs=.1, seq_len=32)
    return path

def slow(clock, step, later=None, after=1e9):
    "A callback with which a batch takes `step` seconds, and `later` ones from second `after` on"
    class Slow(Callback):
        outside = True
        def after_pred(self):
            if not self.training: return clock.skip(.2*step)
            clock.skip(step if clock.seconds<after else later)
    return Slow

def training(clock, **kwargs):
    learn = classifier_learner(classifier_dls(df, tiny_tok('bert'), bs=8, device='cpu'), tiny_arch('bert', num_hidden_layers=1))
    learn.add_cb(slow(clock, **kwargs))
    with learn.no_bar(), learn.no_logging(): yield learn

@pytest.mark.parametrize('after', [1e9,5,0])
def test_a_fit_with_a_limit_goes_faster_where_it_must(clock, after):
    "Twelve batches an epoch, ten seconds at most: as planned; in half of the time where the machine becomes slow; or from the beginning"
    for learn in training(clock, step=.1, later=.4, after=after):
        start = clock.seconds
        learn.fit_schedule('full_tune', 1e-3, epochs=6, most=10)
        rates,took = learn.recorder.hps['lr'],clock.seconds-start
        if after==1e9: assert len(rates)==6*len(learn.dls.train)
        else: assert len(rates)<6*len(learn.dls.train) and 9<took<11, took
        assert rates[-1][-1]<1e-4

@pytest.mark.parametrize('later,how', [(.1,dict(unlabelled=True, refit=True)), (.4,dict(head_init='contrastive', refit=True)), (.4,dict(calibrate=True)),
    *(pytest.param(*o, marks=pytest.mark.slow) for o in [(.1,dict()), (.4,dict()), (.4,dict(refit=True)), (.4,dict(unlabelled=True)), (.4,dict(unlabelled=True, refit=True))])])
def test_the_minutes_of_a_stage_are_those_of_all_its_trainings(how, later, tiny, clock):
    "Twelve seconds, in which the machine becomes slow"
    rows,start = intents(100),clock.seconds
    if how.get('unlabelled'): how = how | dict(unlabelled=intents(400, seed=1).text.tolist())
    stage = fine_tune_classifier(rows, tiny, minutes=.2, precision='fp32', max_len=16, cbs=slow(clock, .1, later, 6)(), **how)
    assert 7<clock.seconds-start<13.2 and stage.seconds<13.2, (clock.seconds-start, stage.seconds)

@pytest.mark.parametrize('busy', [1e9,30])
def test_a_comparison_keeps_its_minutes_where_the_machine_becomes_busy(busy, tiny, clock, monkeypatch):
    monkeypatch.setattr(defaults, 'callbacks', [*defaults.callbacks, slow(clock, .2, 1.2, busy)])
    start,names = clock.seconds,['TF-IDF','frozen probe','all layers','contrastive']
    board = leaderboard(df, archs=tiny, entries=names, minutes=2, seeds=(1,2), log=lambda o: None)
    assert clock.seconds-start<1.1*120, clock.seconds-start
    assert board.best is not None and not [o for o in board.notes.values() if 'failed' in o]
    assert board.done('all layers') and ('by the clock' in ' '.join(board.table.note))==True

def costs(clock, seconds, name, **kwargs):
    def fit(rows):
        if (limit := rows.plan["limit"]) is not None and 60*limit<seconds: raise OutOfTime(seconds)
        clock.skip(seconds)
        return TextBaseline.fit(rows.texts, rows.labels, rows.task)
    return Entry(name, fit, **kwargs)

def test_the_seeds_of_an_entry_come_before_the_entries_that_follow(clock):
    "72 seconds, and an equal share would be 10 for the first seed, less for the others"
    ways = [costs(clock, 10, 'first'), *(costs(clock, 9, f'rival {i}') for i in range(2))]
    board = leaderboard(df, entries=ways, minutes=1.2, seeds=(1,2,3), log=lambda o: None)
    assert board.table.fits['first']==3 and board.best is not None

def test_time_for_entries_that_cannot_run_goes_to_the_others(clock):
    def broken(rows): raise RuntimeError('no such layer')
    ways = [Entry('broken', broken), costs(clock, 10, 'long'), *(costs(clock, 9, f'after {i}', needs=('broken',)) for i in range(6)),
            costs(clock, 1, 'after those', needs=('after 0',))]
    board = leaderboard(df, entries=ways, minutes=.8, seeds=(1,2), log=lambda o: None)
    assert board.done('long') and 'did not finish' in board.notes['after 5']

def test_a_network_takes_the_time_of_the_entries_after_it(clock, tiny):
    "100 seconds, of which an equal share is 9 for the first network, which needs 20 a seed"
    ways = [costs(clock, 20, 'network', needs=('arch',)), *(costs(clock, 20, f'after {i}', needs=('arch',)) for i in range(6))]
    board = leaderboard(df, archs=tiny, entries=ways, minutes=100/60, seeds=(1,2), log=lambda o: None)
    assert board.done('network') and board.best is not None and 'its share is' in board.notes['after 5']

def test_the_checkpoint_with_the_best_probe_is_trained_first(clock, monkeypatch):
    order = []
    monkeypatch.setattr('fastformers.compare.entries.load_config', lambda arch: None) # there is none of these names
    def probe(rows): return TextBaseline.fit(rows.texts, rows.labels, rows.task, max_terms=None if 'b' in rows.plan['arch'] else 0)
    def layers(rows):
        order.append(rows.plan['arch'])
        return probe(rows)
    leaderboard(df, archs=['a','b'], entries=[Entry('frozen probe', probe, ('arch',)), Entry('all layers', layers, ('arch','frozen probe'))], minutes=2, seeds=(1,2), log=lambda o: None)
    assert order[0]=='b'

def test_a_network_without_time_for_all_its_fits_may_win(clock, tiny):
    def weak(rows): return TextBaseline.fit(rows.texts, rows.labels, rows.task, max_terms=3)
    ways = [Entry('weak', weak), costs(clock, 20, 'network', needs=('arch',))]
    board = leaderboard(df, archs=tiny, entries=ways, minutes=1.2, seeds=(1,2,3), log=lambda o: None)
    assert not board.done('network') and board.winner=='network' and board.gain('network', 'weak')[1]>0
    assert 'no time left for' in board.notes['network'] and board.best is not None and board.sentences()[0].startswith('Use network')
