"What is written: checked at the door, before any training, and written into what is there"
import errno, io, os, re, shutil, stat, subprocess, sys, threading, time
from pathlib import Path
import pandas as pd, pytest
from fastai.learner import Learner
from fastformers import cli, files
from fastformers.commands import answer
from fastformers.callback.distributed import n_processes
from fastformers.compare.leaderboard import leaderboard
from fastformers.files import atomic_dir, atomic_file, check_dir, is_main_process, processes, write_text
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.onnx import to_onnx
from fastformers.inference.predictor import from_hf
from fastformers.inference.stage_json import read_stage, write_stage
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.text import train_tokenizer as training
from fastformers.text.store import TokenStore
from fastformers.ulmfit.run import ulmfit
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm, pretrain_lm
from test_contracts_common import *

nowhere = Path('/proc/fastformers') # no user can write there
unwritable = pytest.mark.skipif(not nowhere.parent.is_dir(), reason='no /proc')
texts = tiny_df().text.tolist()
cheap = dict(seq_len=32, bs=8, epochs=1)

@pytest.fixture(scope='module')
def here(tmp_path_factory):
    "A tiny checkpoint, a table, a classifier of it, and their learners"
    d = tmp_path_factory.mktemp('outputs')
    dls = classifier_dls(tiny_df(), tiny_tok('bert'), bs=8)
    learn = classifier_learner(dls, tiny_arch('bert'))
    lm = lm_learner(lm_dls(texts, tiny_tok('bert'), **{k:cheap[k] for k in ('seq_len','bs')}), tiny_arch('bert'))
    lm.save_encoder(d/'arch'); learn.to_hf(d/'model')
    tiny_df().to_csv(d/'reviews.csv', index=False)
    return d,learn,lm

def command(*args):
    "The error of the command, as it raises it"
    args = cli.parse_args([str(o) for o in args])
    args.data = cli.section_types['data'](**cli.changes(args).get('data', {}))
    args.command(args)

doors = dict(
    pretrain_lm=lambda d,at: pretrain_lm(texts, at),
    fine_tune_lm=lambda d,at: fine_tune_lm(texts, d/'arch', at, **cheap),
    fine_tune_classifier=lambda d,at: fine_tune_classifier(tiny_df(), d/'arch', at),
    ulmfit=lambda d,at: ulmfit(tiny_df(), arch=d/'arch', path=at),
    leaderboard=lambda d,at: leaderboard(tiny_df(), archs=[d/'arch'], path=at, log=lambda o: None),
    store=lambda d,at: TokenStore.build(texts, tiny_tok('bert'), at),
    tokenizer=lambda d,at: training.train_tokenizer(texts, path=at),
    pretrain=lambda d,at: command('pretrain', d/'reviews.csv', '--output', at),
    adapt=lambda d,at: command('adapt', d/'reviews.csv', '--arch', d/'arch', '--output', at),
    classify=lambda d,at: command('classify', d/'reviews.csv', '--arch', d/'arch', '--output', at),
    run=lambda d,at: command('run', d/'run.ini', '--output', at),
    demo=lambda d,at: command('demo', '--output', at),
    compare=lambda d,at: command('compare', d/'reviews.csv', '--archs', d/'arch', '--output', at),
    predict=lambda d,at: command('predict', d/'model', '--csv', d/'reviews.csv', '--out', at/'out.csv'))

@unwritable
@pytest.mark.parametrize('below', [False,True], ids=['itself','below'])
@pytest.mark.parametrize('door', doors)
def test_a_place_that_refuses_is_found_before_work(door, below, here, monkeypatch):
    d,*_ = here
    write_text(d/'run.ini', f"[data]\nsource = {d/'reviews.csv'}\n[model]\narch = {d/'arch'}\n")
    def work(*args, **kwargs): raise AssertionError('work began')
    monkeypatch.setattr(Learner, 'fit', work)
    monkeypatch.setattr(training, '_draw', work)
    monkeypatch.setattr(TextBaseline, 'fit', work)
    monkeypatch.setattr(HFTokenizer, 'encode_batch', work)
    monkeypatch.setattr(answer, 'read_chunks', work)
    with pytest.raises(OSError, match=f'{nowhere}.* cannot be written'):
        doors[door](d, nowhere/'below' if below else nowhere)

@unwritable
def test_what_writes_at_once_says_so_too(here):
    d,learn,lm = here
    at = nowhere/'model'
    for f in (learn.to_hf, learn.save_encoder, lm.save_encoder, from_hf(d/'model').save):
        with pytest.raises(OSError, match='cannot be written'): f(at)

@unwritable
def test_a_graph_is_not_made_for_a_place_that_refuses(here, monkeypatch):
    pytest.importorskip('onnxruntime'); pytest.importorskip('onnxscript')
    with pytest.raises(OSError, match='cannot be written'): to_onnx(nowhere/'model')

@pytest.mark.parametrize('door', ['fine_tune_lm','fine_tune_classifier'])
def test_a_disk_with_too_little_space_is_found_before_training(door, here, tmp_path, monkeypatch):
    monkeypatch.setattr(files.shutil, 'disk_usage', lambda at: type('',(),{'free':100_000}))
    monkeypatch.setattr(Learner, 'fit', lambda *args, **kwargs: pytest.fail('training began'))
    with pytest.raises(OSError, match='less than .* MB are free'): doors[door](here[0], tmp_path/'out')

def test_a_full_disk_is_found(tmp_path, monkeypatch):
    class Full:
        def __init__(self, **kwargs): pass
        def __enter__(self): return self
        def __exit__(self, *args): pass
        def write(self, o): raise OSError(errno.ENOSPC, 'No space left on device')
    monkeypatch.setattr(files.tempfile, 'NamedTemporaryFile', Full)
    with pytest.raises(OSError, match='a cannot be written .No space left'): check_dir(tmp_path/'a')

# ---- into what is there

def tree(path): return sorted(str(o.relative_to(path)) for o in path.rglob('*'))
def mounted(at, monkeypatch):
    "Let the system refuse to rename `at`, as a directory where a disk is mounted"
    rename = os.rename
    def refuse(a, b, **kwargs):
        if Path(at) in (Path(a),Path(b)): raise OSError(errno.EBUSY, 'Device or resource busy', str(a))
        rename(a, b, **kwargs)
    monkeypatch.setattr(os, 'rename', refuse)

@pytest.mark.parametrize('above', ['open','refuses'])
def test_a_mounted_directory_is_written_into(above, here, tmp_path, monkeypatch):
    at = tmp_path/'out'
    (at/'lost+found').mkdir(parents=True)
    mounted(at, monkeypatch)
    if above=='refuses': monkeypatch.setattr(os, 'access', lambda o,*args: Path(o)!=tmp_path)
    here[1].to_hf(at); (at/'old.json').touch()
    here[1].save_encoder(at) # leaves nothing of the first
    with pytest.raises(KeyboardInterrupt):
        with atomic_dir(at) as new: (new/'half').touch(); raise KeyboardInterrupt
    assert tree(tmp_path)==sorted(['out','out/lost+found', *(f'out/{o}' for o in tree(here[0]/'model'))])
    assert from_hf(at)(texts[:1]) and read_stage(at)['stage']=='classifier'

def test_leftovers_of_a_killed_run_do_not_close_a_directory(tmp_path):
    for o in ('.new-out','.old-out'): (tmp_path/'out'/o).mkdir(parents=True)
    assert check_dir(tmp_path/'out')
    (tmp_path/'out/.git').mkdir() # is the user's
    with pytest.raises(FileExistsError, match='not empty'): check_dir(tmp_path/'out')

def test_all_files_have_the_usual_permissions(here, tmp_path):
    d,learn,_ = here
    (tmp_path/'usual').touch()
    usual = (tmp_path/'usual').stat().st_mode
    TextBaseline.fit(texts, tiny_df().label.tolist(), learn.model.task).save(tmp_path/'baseline')
    (tmp_path/'plain').mkdir(); learn.model.save(tmp_path/'plain')
    stage = fine_tune_classifier(tiny_df(), d/'arch', tmp_path/'stage', bs=8, epochs=1)
    found = {str(o.relative_to(tmp_path)):o.stat().st_mode for o in tmp_path.rglob('*') if o.is_file()}
    assert any(o.endswith('head.safetensors') for o in found) and {*found.values()}=={usual}, found

def test_a_file_keeps_its_permissions(tmp_path):
    for mode in (0o600,0o664):
        (f := tmp_path/'labels.csv').write_text('old'); f.chmod(mode)
        write_text(f, 'new')
        assert f.read_text()=='new' and f.stat().st_mode&0o777==mode

def test_links_stay_and_pipes_and_devices_are_written_into(tmp_path):
    real,link,pipe,got = tmp_path/'real',tmp_path/'link',tmp_path/'pipe',[]
    write_text(real, 'old'); link.symlink_to(real)
    write_text(link, 'new')
    assert link.is_symlink() and real.read_text()=='new'
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, 'through'); reader.join(20)
    assert got==['through'] and stat.S_ISFIFO(pipe.stat().st_mode)
    null = os.stat('/dev/null')
    write_text('/dev/null', 'gone')
    assert os.stat('/dev/null').st_ino==null.st_ino and stat.S_ISCHR(os.stat('/dev/null').st_mode)
    assert tree(tmp_path)==['link','pipe','real']

def test_a_mounted_file_is_written_into(tmp_path, monkeypatch):
    write_text(tmp_path/'a', 'old')
    def refuse(*args, **kwargs): raise OSError(errno.EBUSY, 'Device or resource busy')
    monkeypatch.setattr(os, 'replace', refuse); monkeypatch.setattr(os, 'rename', refuse)
    write_text(tmp_path/'a', 'new')
    assert (tmp_path/'a').read_text()=='new' and tree(tmp_path)==['a']

def test_predict_writes_into_streams(here, tmp_path):
    d,*_ = here
    code = f"from fastformers.cli import main; print('before', flush=True); main(['predict', '{d}/model', '--csv', '{d}/reviews.csv', '--out', '/dev/stdout'])"
    with open(tmp_path/'all', 'w') as f: subprocess.run([sys.executable, '-c', code], stdout=f, check=True, timeout=280)
    assert (tmp_path/'all').read_text().splitlines()[:2]==['before','text,label,is_valid,predicted_label,predicted_score']
    command('predict', d/'model', '--csv', d/'reviews.csv', '--out', '/dev/null')
    assert stat.S_ISCHR(os.stat('/dev/null').st_mode)

@pytest.mark.parametrize('ignored', [False,True])
def test_a_command_that_is_terminated_leaves_nothing(ignored, here, tmp_path):
    pd.DataFrame(dict(text=texts*2000)).to_csv(tmp_path/'many.csv', index=False)
    code = "import sys; from fastformers.cli import main; sys.exit(main())"
    if ignored: code = 'import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); '+code # as `nohup ... &` does
    p = subprocess.Popen([sys.executable, '-c', code, 'predict', here[0]/'model', '--csv', tmp_path/'many.csv', '--out', tmp_path/'answers.csv'], stderr=subprocess.PIPE, text=True)
    while len([o for o in tree(tmp_path) if '.trial-' not in o])<2 and p.poll() is None: time.sleep(.05) # the answers, not the trial before them
    p.terminate()
    said = p.communicate(timeout=280)[1]
    assert p.returncode==130 and said.splitlines()[-1].endswith('interrupted') and tree(tmp_path)==['many.csv']

def test_a_read_only_file_is_not_replaced(here, tmp_path, monkeypatch):
    (out := tmp_path/'out.csv').write_text('kept')
    monkeypatch.setattr(os, 'access', lambda *args: False)   # root may write anything
    with pytest.raises(PermissionError, match='out.csv is read-only; choose another file'): command('predict', here[0]/'model', '--csv', here[0]/'reviews.csv', '--out', out)

def test_what_somebody_put_into_a_directory_stays_when_it_is_replaced(here, tmp_path):
    "Notes and another model, at each door that replaces a directory"
    d,*_ = here
    shutil.copytree(d/'model', m := tmp_path/'m')
    (m/'notes.txt').write_text('mine')
    shutil.copytree(d/'model', m/'other')
    (m/'model.onnx').write_text('a graph of the old network')
    from_hf(m).save(m)
    assert not (m/'model.onnx').exists()
    again = d/'reviews.csv', '--arch', d/'arch', '--output', m, '--force', '--epochs', 1, '--bs', 8
    for o in (('rename-class', m, 'positive', 'good'), ('classify', *again), ('adapt', *again)): assert cli.main([*map(str, o)])==0
    assert (m/'notes.txt').read_text()=='mine' and from_hf(m/'other')(['fine']) and read_stage(m)['stage']=='target LM'
    assert not (m/'head.safetensors').exists()

def test_a_directory_is_no_file_to_write(here, tmp_path):
    with pytest.raises(IsADirectoryError, match='expected the name of a file'):
        command('predict', here[0]/'model', '--csv', here[0]/'reviews.csv', '--out', tmp_path)

# ---- what is printed

@pytest.mark.parametrize('encoding', ['ascii','latin-1'])
def test_an_output_that_is_not_utf8_loses_no_training(encoding, here, tmp_path, monkeypatch, caplog):
    d,*_ = here
    df = tiny_df()
    df.assign(label=df.label.replace({'positive':'gut – schön','negative':'schlecht…'}), text=df.text+' …').to_csv(tmp_path/'r.csv', index=False)
    monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(raw := io.BytesIO(), encoding=encoding))
    commands = ['classify', f'{tmp_path}/r.csv', '--arch', f'{d}/arch', '--output', f'{tmp_path}/out', '--epochs', '1', '--bs', '8'], \
               ['predict', f'{tmp_path}/out', '--csv', f'{tmp_path}/r.csv'], ['predict', f'{tmp_path}/out', 'Fein…']
    for o in commands: assert cli.main(o)==0
    out = raw.getvalue().decode(encoding)
    assert r'gut \u2013 sch' in out and r'\u2026' in out and caplog.text.count('the output is')==1

def test_lone_surrogates_are_written(here, tmp_path):
    d,*_ = here
    df = tiny_df().assign(label=lambda o: o.label.replace('positive', 'gut \ud800'))
    fine_tune_classifier(df, d/'arch', tmp_path/'out', bs=8, epochs=1)
    assert 'gut \ud800' in from_hf(tmp_path/'out').labels
    command('predict', tmp_path/'out', '--csv', d/'reviews.csv', '--out', tmp_path/'t.csv', '--top-k', 3)
    assert r'gut \ud800' in (tmp_path/'t.csv').read_text('utf-8')

# ---- one of several processes

@pytest.mark.parametrize('env,is_one_of', [({'RANK':'1'}, (0,1)), ({'RANK':'1','WORLD_SIZE':''}, (0,1)), ({'RANK':'1','WORLD_SIZE':'1'}, (0,1)),
    ({'RANK':'','WORLD_SIZE':'2'}, (0,2)), ({'RANK':'1','WORLD_SIZE':'2'}, (1,2)), ({'RANK':'no'}, (0,1)), ({}, (0,1))], ids=str)
def test_a_process_is_one_of_several_if_world_size_says_so(env, is_one_of, tmp_path, monkeypatch):
    for k in ('RANK','WORLD_SIZE'): monkeypatch.delenv(k, raising=False)
    for k,v in env.items(): monkeypatch.setenv(k, v)
    assert processes()==is_one_of and is_main_process()==(is_one_of[0]==0)
    write_text(tmp_path/'a', 'x')
    assert (tmp_path/'a').exists()==is_main_process()

def test_a_rank_alone_silences_nothing(here, tmp_path, monkeypatch, capsys):
    d,*_ = here
    monkeypatch.setenv('RANK', '1'); monkeypatch.delenv('WORLD_SIZE', raising=False)
    assert n_processes()==1
    assert cli.main(['predict', str(d/'model'), '--csv', str(d/'reviews.csv')])==0
    assert len(capsys.readouterr().out.splitlines())==61
    assert cli.main(['classify', str(d/'reviews.csv'), '--arch', str(d/'arch'), '--output', str(tmp_path/'m'), '--epochs', '1'])==0
    assert 'accuracy' in capsys.readouterr().out and (tmp_path/'m/stage.json').exists()
