"The command `fastformers`, from files to files: its verbs, its errors, and what it leaves when it is stopped"
import csv, inspect, json, os, random, signal, subprocess, sys, sysconfig, time
from pathlib import Path
import pandas as pd, pytest, torch
from transformers import AutoModel, AutoModelForMaskedLM
from fastformers.cli import main
from fastformers.cli_output import undisturbed
from fastformers.export import from_hf
from fastformers.recipe import Recipe, read_recipe
from fastformers.stages import read_stage
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

command = Path(sysconfig.get_path('scripts'))/'fastformers'
quick = '--bs 8 --epochs 1'.split()

def run(*args): return main([str(o) for o in args])
def hidden(d): return sorted(o.relative_to(d).as_posix() for o in d.rglob('.*'))

@pytest.fixture(scope='module')
def here(tmp_path_factory):
    "Files, a tiny checkpoint, and a classifier that came from them by the command line"
    d = tmp_path_factory.mktemp('cli')
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained(d/'arch'); tiny_tok('bert').save_pretrained(d/'arch')
    tiny_df().to_csv(d/'reviews.csv', index=False)
    for i,(text,label) in enumerate(zip(tiny_df().text, tiny_df().label)):
        (d/'folder'/label).mkdir(parents=True, exist_ok=True); (d/'folder'/label/f'{i:02}.txt').write_text(text)
    tiny_df().assign(a=tiny_df().text, b='It is a cup.', short=(tiny_df().text.str.len()<50)*1, good=(tiny_df().label=='positive')*1).drop(columns='text').to_csv(d/'wide.csv', index=False)
    assert run('classify', d/'reviews.csv', '--arch', d/'arch', '--output', d/'classifier', *quick)==0
    return d

def test_pretrain_and_adapt_hand_over(here, capsys):
    assert run('pretrain', here/'reviews.csv', here/'folder', '--output', here/'general', '--layers', 2, '--width', 64, '--vocab-sz', 600, '--seq-len', 32, *quick)==0
    assert '→' in (out := capsys.readouterr().out) and f"adapt MORE_TEXTS --arch {here/'general'}" in out
    assert run('adapt', here/'folder', '--arch', here/'general', '--output', here/'domain', '--schedule', 'gradual_unfreeze', *quick)==0
    assert read_stage(here/'domain')['parent']['stage']=='general LM' and AutoModelForMaskedLM.from_pretrained(here/'domain').config.num_hidden_layers==2

def test_classify_ends_with_tables_and_the_next_command(here, capsys):
    assert run('classify', here/'folder', '--arch', here/'arch', '--output', here/'from folder', '--test', here/'reviews.csv', *quick)==0
    out = capsys.readouterr().out
    assert all(o in out for o in ('test accuracy','precision','| mean', f"predict '{here/'from folder'}'"))

@pytest.mark.parametrize('labels,kind', [('short,good','multi'), ('label','single')])
def test_pairs_and_several_labels_are_named_with_commas(here, tmp_path, labels, kind):
    assert run('classify', here/'wide.csv', '--text-col', 'a, b', '--label-col', labels, '--arch', here/'arch', '--output', tmp_path/'c', *quick)==0
    p = from_hf(tmp_path/'c', device='cpu')
    assert p.kind==kind and p.pairs
    out = tmp_path/'out.csv'
    assert run('predict', tmp_path/'c', '--csv', here/'wide.csv', '--text-col', 'a', '--text-col', 'b', '--out', out)==0
    got = pd.read_csv(out, keep_default_na=False)
    assert len(got)==60 and list(got)[-2:]==['predicted_label','predicted_score'] # there is a column label already

def test_predict_says_what_the_learner_would(here, tmp_path, capsys):
    texts = tiny_df().text.tolist()
    want = from_hf(here/'classifier', device='cpu')(texts)
    tiny_df()[['text']].to_csv(tmp_path/'in.csv', index=False)
    assert run('predict', here/'classifier', '--csv', tmp_path/'in.csv', '--out', tmp_path/'out.csv')==0
    got = pd.read_csv(tmp_path/'out.csv', keep_default_na=False)
    assert got.text.tolist()==texts and got.label.tolist()==[o['label'] for o in want]
    assert got.score.tolist()==pytest.approx([o['score'] for o in want], abs=1e-5)
    assert '| label ' in capsys.readouterr().out
    assert run('predict', here/'classifier', *texts[:2], '--top-k', 2)==0
    assert 'label_2' in capsys.readouterr().out

def test_standard_input_is_labelled_line_by_line_without_fastai(here):
    code = f"import sys\nfrom fastformers.cli import main\nr = main(['predict', {str(here/'classifier')!r}, '-'])\nassert 'fastai' not in sys.modules\nsys.exit(r)"
    r = subprocess.run([sys.executable, '-c', code], input='\ufeffGreat sound.\n\nCafé, naïve\t😡\n', capture_output=True, text=True, encoding='utf-8')
    assert r.returncode==0, r.stderr
    assert [o.split('\t',2)[2] for o in r.stdout.split('\n')[:-1]]==['Great sound.','','Café, naïve\t😡'] and r.stderr==''

def test_a_large_csv_is_a_stream(here):
    "Rows are written while later ones are not read yet"
    from fastformers import cli_predict
    p,seen = from_hf(here/'classifier', device='cpu'),[]
    p.chunk = 10
    rows = ([i,'a text'] for i in range(100) if seen.append(i) is None)
    got = cli_predict.labelled(p, rows, lambda r: r[1])
    for i,(r,o) in zip(range(5), got): assert r[0]==i
    assert len(seen)<=20

def test_a_classifier_for_everybody(here, tmp_path):
    "With Hugging Face's own head, transformers opens what the command wrote"
    from transformers import pipeline
    assert run('classify', here/'reviews.csv', '--arch', here/'arch', '--head', 'hf', '--output', tmp_path/'c', *quick)==0
    a,b = pipeline('text-classification', str(tmp_path/'c'), device='cpu')('Great sound.')[0],from_hf(tmp_path/'c', device='cpu')('Great sound.')[0]
    assert a['label']==b['label'] and a['score']==pytest.approx(b['score'], abs=1e-4)

def test_export_is_the_model_alone(here, tmp_path, capsys):
    assert run('export', here/'classifier', tmp_path/'c')==0 and run('export', here/'arch', tmp_path/'lm')==0
    assert not (tmp_path/'c'/'stage.json').exists() and 'from_hf' in (tmp_path/'c'/'README.md').read_text()
    assert from_hf(tmp_path/'c', device='cpu')('Great sound.')==from_hf(here/'classifier', device='cpu')('Great sound.')
    AutoModelForMaskedLM.from_pretrained(tmp_path/'lm'); AutoModel.from_pretrained(tmp_path/'c')
    assert run('export', here/'classifier', tmp_path/'c')==2 and run('export', here/'classifier', tmp_path/'c', '--half', '--force')==0 and not hidden(tmp_path)

@pytest.mark.parametrize('args,words', [
    (['clasify'], ['invalid choice']),
    (['classify', 'reviews.csv', '--output', 'x', '--epoch', '3'], ['did you mean --epochs?']),
    (['classify', 'reviews.csv', '--output', 'x', '--epochs', 'three'], ['expected a number']),
    (['classify', 'reviews.csv', '--output', 'x', '--label-col', 'lable'], ['did you mean label?', 'Columns: text, label, is_valid']),
    (['classify', 'reveiws.csv', '--output', 'x'], ['reviews.csv']),
    (['classify', 'reviews.csv', '--output', 'classifier'], ['--force']),
    (['classify', 'reviews.csv', '--output', 'folder', '--force'], ['another name']),
    (['classify', 'reviews.csv', '--output', 'reviews.csv/x'], ['cannot write']),
    (['classify', 'reviews.csv', '--output', 'x', '--epochs', '1', '--minutes', '1'], ['one of them']),
    (['classify', 'reviews.csv', '--output', 'x', '--arch', 'arch', '--lr', '0'], ['--lr must be more than 0']),
    (['classify', 'reviews.csv', '--output', 'x', '--arch', 'arch', '--schedule', 'slow'], ['gradual_unfreeze']),
    (['classify', 'reviews.csv', '--output', 'x', '--arch', 'nowhere/at-all'], ['nowhere/at-all']),
    (['adapt', 'reviews.csv', '--output', 'x', '--arch', 'arch', '--objective', 'mml'], ['mlm, clm']),
    (['pretrain', 'reviews.csv', '--output', 'x', '--text-col', 'review'], ['Columns: text']),
    (['predict', 'classifier'], ['expected texts']),
    (['predict', 'arch', 'a text'], ['classifier']),
    (['predict', 'classifier', '--csv', 'reviews.csv', '--out', 'reviews.csv', '--force'], ['the file that is read']),
    (['export', 'folder', 'x'], ['config.json'])])
def test_a_mistake_is_one_line_and_leaves_nothing(here, capsys, monkeypatch, args, words):
    monkeypatch.chdir(here)
    before = sorted(o.name for o in here.iterdir())
    try: code = main(args)
    except SystemExit as e: code = e.code
    out,err = capsys.readouterr()
    last = err.strip().splitlines()[-1]
    assert code==2 and last.startswith('fastformers: error: ') and all(o in last for o in words), err
    assert 'Traceback' not in err and out=='' and sorted(o.name for o in here.iterdir())==before

def test_help_is_fast_and_says_every_flag():
    start = time.time()
    r = subprocess.run([command, 'classify', '--help'], capture_output=True, text=True, env={**os.environ, 'COLUMNS':'200'})
    took = time.time()-start
    from fastformers.ulmfit import fine_tune_classifier
    flags = {o.replace('_','-') for o in inspect.signature(fine_tune_classifier).parameters}-{'df','path','cbs','name'}
    assert all(f'--{o} ' in r.stdout for o in flags) and '(default: 4)' in r.stdout
    assert took<4 # importing fastai alone would take longer

def stop_after(seconds, sig, *args):
    "Exit code and standard error of the command when `sig` comes after `seconds`"
    p = subprocess.Popen([command, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try: p.wait(seconds)
    except subprocess.TimeoutExpired: p.send_signal(sig)
    _,err = p.communicate(timeout=60)
    return p.returncode,err

@pytest.mark.skipif(os.name=='nt', reason='signals')
@pytest.mark.parametrize('sig', [signal.SIGINT, signal.SIGTERM])
def test_stopped_at_any_moment_nothing_is_half_written(here, tmp_path, sig):
    args = 'classify', here/'reviews.csv', '--arch', here/'arch', '--bs', 8, '--epochs', 4
    for i in range(2):
        d = tmp_path/str(i); d.mkdir()
        code,err = stop_after(random.uniform(1.5, 7), sig, *args, '--output', d/'deep'/'c')
        assert code in (0, 128+sig, -sig), err # the last: before the command has begun, on a slow machine
        if code>0: assert 'nothing is half-written' in err and 'Traceback' not in err
        if not code or (d/'deep').exists(): from_hf(d/'deep'/'c', device='cpu')
        assert not hidden(d)

@pytest.mark.parametrize('force', [False, True])
def test_stopped_while_it_saves_the_old_one_stays(here, tmp_path, monkeypatch, capsys, force):
    import fastformers.learner
    args = 'classify', here/'reviews.csv', '--arch', here/'arch', '--output', tmp_path/'c', *quick
    if force: assert run(*args)==0
    old = sorted(o.name for o in tmp_path.rglob('*'))
    def stop(*args, **kwargs): raise KeyboardInterrupt
    monkeypatch.setattr(fastformers.learner, 'write_stage', stop)
    assert run(*args, *(['--force'] if force else []))==130 and 'nothing is half-written' in capsys.readouterr().err
    assert sorted(o.name for o in tmp_path.rglob('*'))==old

@pytest.mark.skipif(os.name=='nt', reason='signals')
def test_a_stopped_prediction_leaves_no_file(here, tmp_path):
    with open(tmp_path/'in.csv', 'w', newline='') as f: csv.writer(f).writerows([['text'], *[['Great sound, light, and the battery lasts for two days. '*8]]*60_000])
    code,err = stop_after(7, signal.SIGINT, 'predict', here/'classifier', '--csv', tmp_path/'in.csv', '--out', tmp_path/'out.csv')
    assert code==130, err
    assert [o.name for o in tmp_path.iterdir()]==['in.csv']

def test_a_signal_waits_for_a_rename():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with undisturbed(): signal.raise_signal(signal.SIGINT); done.append(1)
    assert done==[1] and signal.getsignal(signal.SIGINT) is signal.default_int_handler

def test_progress_is_for_terminals_only(here, tmp_path):
    r = subprocess.run([command, 'classify', here/'reviews.csv', '--arch', here/'arch', '--output', tmp_path/'c', *quick], capture_output=True, text=True)
    assert r.returncode==0 and '\r' not in r.stdout+r.stderr and 'epoch  ' not in r.stdout and r.stdout.startswith('| stage')
    assert all(o[:8].count(':')==2 for o in r.stderr.splitlines()), r.stderr # log lines with their time, nothing else

@pytest.fixture(scope='module')
def timed(here):
    "A run of two seeds with a budget of time, which is enough for 1.3 epochs"
    r = Recipe().replace(run=dict(output='timed', seed='1, 2'), data=dict(source='reviews.csv'), model=dict(arch='./arch'), lm=dict(minutes=.03, bs=8, seq_len=32), classifier=dict(epochs=1, bs=8))
    (here/'timed.ini').write_text(r.to_ini())
    with pytest.MonkeyPatch.context() as m:
        m.setattr('fastformers.ulmfit.epochs_for', lambda learn, minutes: 1.3)
        assert run('run', here/'timed.ini')==0
    return here/'timed'

def test_a_run_with_a_budget_can_be_repeated(timed, here):
    again = read_recipe(timed/'settings.ini')
    assert again.lm.minutes is None and again.lm.epochs==read_stage(timed/'target_lm')['epochs']==1.3 and '0.03' in (timed/'settings.ini').read_text()
    assert run('run', timed/'settings.ini', '--output', here/'again')==0
    a,b = (json.loads((o/'report.json').read_text())['stages'][0] for o in (timed, here/'again'))
    assert a['metrics']==pytest.approx(b['metrics'], rel=1e-4)

def test_force_removes_what_the_earlier_run_left(timed, here):
    (timed/'notes_seed2').mkdir(); (timed/'classifier_seed9').mkdir() # not stages
    assert (timed/'classifier_seed2'/'stage.json').is_file()
    assert run('run', timed/'settings.ini', '--seed', '1', '--force')==0
    assert {o.name for o in timed.iterdir()}=={'target_lm','classifier','classifier_without_lm','notes_seed2','classifier_seed9','report.json','report.md','report.png','settings.ini'}

def test_a_recipe_names_pairs_and_several_labels(here):
    r = Recipe().replace(run=dict(output='pairs'), data=dict(source='wide.csv', text_col='a, b', label_col='short, good'), model=dict(arch='./arch'),
                         lm=dict(epochs=1, bs=8, seq_len=32), classifier=dict(epochs=1, bs=8))
    (here/'pairs.ini').write_text(r.to_ini())
    assert run('run', here/'pairs.ini')==0
    p = from_hf(here/'pairs'/'classifier', device='cpu')
    assert p.pairs and p.labels==['good','short'] and read_recipe(here/'pairs'/'settings.ini').data.text_col=='a, b'
