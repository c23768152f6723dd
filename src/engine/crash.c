/*
 * crash.c
 *		The mapped file in which runs are noted.
 *
 * It lies in pg_stat_tmp, which base backups skip, and is made by the postmaster,
 * whose children inherit the mapping; the mapping outlives a crash restart, in
 * which shared memory does not.  After a crash with restart_after_crash = off the
 * next postmaster reads what the last one left.
 *
 *		empty --crash_note--> running --crash_clear--> empty
 *		                      running --quit handler--> innocent
 *		running, innocent with helpers --judge--> suspect --crash_settled--> empty
 *
 * When a process crashes, the postmaster tells all others to quit.  So a cell that
 * is still running belongs to the one that crashed, if anybody was told.  If
 * nobody was, all were killed at once (the machine lost its power, a container
 * was killed), or the postmaster was, and nobody is to blame.
 *
 * The parallel workers of a run's queries run its code, too.  They count in its
 * cell while they are there; one that vanished without a word is still counted
 * when its leader, who was told to quit, is gone as well.
 *
 * A cell is written by the process that has it.  Suspects are made when nobody
 * else runs, and settled by the dispatcher of their database.
 */
#include "postgres.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/parallel.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/proc.h"

#include "core/compat.h"
#include "core/duration.h"
#include "engine/crash.h"

#define CRASH_FILE			PG_STAT_TMP_DIR "/reconcile_runs"
#define CRASH_MAGIC			"rcncrash"
#define CRASH_VERSION		2
#define BOOT_ID_FILE		"/proc/sys/kernel/random/boot_id"
#define BOOT_ID_SIZE		64
#define SESSION_CELLS		16		/* for runs in sessions, beyond those of the executors */
#define SUSPECTS			128		/* that wait to be booked; of more the oldest is given up */
#define CELLS_MAX			(1024 + SESSION_CELLS + SUSPECTS)

typedef enum CellState
{
	CELL_EMPTY,
	CELL_TAKEN,					/* by a session that is about to fill it */
	CELL_RUNNING,
	CELL_INNOCENT,				/* told to quit in the middle of a run */
	CELL_SUSPECT
} CellState;

typedef struct Cell
{
	pg_atomic_uint32 state;
	pg_atomic_uint32 helpers;	/* parallel workers of the run that are there, or vanished */
	CrashNote	note;
} Cell;

typedef struct CrashFile
{
	char		magic[8];
	uint32		version;
	uint32		cell_size;
	uint32		ncells;			/* suspects first, then executors, then sessions */
	pg_atomic_uint32 told;		/* a process of ours was told to quit */
	char		boot_id[BOOT_ID_SIZE];
	Cell		cells[FLEXIBLE_ARRAY_MEMBER];
} CrashFile;

/* NULL: there is none. */
static CrashFile *file = NULL;
static int	nexecutors;

/* The cell of this process, or NULL. */
static Cell *volatile my_cell = NULL;
static bool is_executor = false;

/* In a parallel worker: the cell of the run that it helps, or NULL. */
static Cell *volatile helped_cell = NULL;

static ExecutorStart_hook_type next_executor_start = NULL;

/* ----------------------------------------------------------------
 * In a process that runs user code
 * ----------------------------------------------------------------
 */

static void
set_state(Cell *cell, CellState state)
{
	/* what a handler or the next life sees is in the order in which it was written */
	pg_write_barrier();
	pg_atomic_write_u32(&cell->state, state);
}

/* Safe in a signal handler. */
static void
told_to_quit(void)
{
	if (file == NULL)
		return;
	if (my_cell != NULL)
	{
		uint32		running = CELL_RUNNING;

		(void) pg_atomic_compare_exchange_u32(&my_cell->state, &running, CELL_INNOCENT);
	}
	if (helped_cell != NULL)
		pg_atomic_fetch_sub_u32(&helped_cell->helpers, 1);
	pg_atomic_write_u32(&file->told, 1);
}

void
crash_quit_handler(SIGNAL_ARGS)
{
	told_to_quit();
	/* as SignalHandlerForCrashExit() */
	_exit(2);
}

/* What a session does when it is told to quit is its own. */
static struct sigaction session_quit;

static void
session_quit_handler(SIGNAL_ARGS)
{
	told_to_quit();
	session_quit.sa_handler(postgres_signal_arg);
}

static void
crash_xact_callback(XactEvent event, void *arg)
{
	/* an executor has yet to book what an aborted run means */
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE || (event == XACT_EVENT_ABORT && !is_executor))
		crash_clear();
}

void
crash_attach(int slot)
{
	is_executor = true;
	if (file != NULL)
		my_cell = &file->cells[SUSPECTS + slot];
}

/* A free cell, or NULL: then the run goes unnoted. */
static Cell *
take_session_cell(void)
{
	for (int i = SUSPECTS + nexecutors; i < file->ncells; i++)
	{
		uint32		empty = CELL_EMPTY;

		if (pg_atomic_compare_exchange_u32(&file->cells[i].state, &empty, CELL_TAKEN))
			return &file->cells[i];
	}
	return NULL;
}

static void
take_quit_signal(void)
{
	struct sigaction action;

	if (sigaction(SIGQUIT, NULL, &action) == 0 && action.sa_handler != session_quit_handler)
	{
		session_quit = action;
		action.sa_handler = session_quit_handler;
		(void) sigaction(SIGQUIT, &action, NULL);
	}
}

void
crash_note(const LoopRun *run)
{
	static bool registered = false;
	CrashNote  *note;

	if (file == NULL)
		return;
	if (!registered)
	{
		RegisterXactCallback(crash_xact_callback, NULL);
		registered = true;
	}
	if (!is_executor)
	{
		take_quit_signal();
		if (my_cell == NULL)
			my_cell = take_session_cell();
	}
	if (my_cell == NULL || run->nmarks == 0)
		return;
	/* one whose end was its own, as exit() is, has left its count */
	pg_atomic_write_u32(&my_cell->helpers, 0);
	note = &my_cell->note;
	note->database = MyDatabaseId;
	note->pid = MyProcPid;
	note->attempt = run->attempt;
	note->mark = run->marks[0].number;
	note->started_at = clock_now();
	strlcpy(note->loop_name, run->rules->loop_name, sizeof(note->loop_name));
	strlcpy(note->entity_id, run->entity_id, sizeof(note->entity_id));
	set_state(my_cell, CELL_RUNNING);
}

void
crash_clear(void)
{
	Cell	   *cell = my_cell;

	if (cell == NULL)
		return;
	/* a session's cell is anybody's from here on: the handler must not touch it */
	if (!is_executor)
		my_cell = NULL;
	set_state(cell, CELL_EMPTY);
}

/* ----------------------------------------------------------------
 * In a parallel worker of its queries
 * ----------------------------------------------------------------
 */

/* Enters or leaves a cell: the handler finds both or neither. */
static void
help(Cell *cell, bool enter)
{
	sigset_t	quit;

	sigemptyset(&quit);
	sigaddset(&quit, SIGQUIT);
	sigprocmask(SIG_BLOCK, &quit, NULL);
	pg_atomic_fetch_add_u32(&cell->helpers, enter ? 1 : -1);
	helped_cell = enter ? cell : NULL;
	sigprocmask(SIG_UNBLOCK, &quit, NULL);
}

static void
helper_exit(int code, Datum arg)
{
	/* as for an executor */
	if (code == 0 || code == 1)
		help(helped_cell, false);
}

static void
find_helped(int leader)
{
	for (int i = SUSPECTS; i < file->ncells; i++)
	{
		Cell	   *cell = &file->cells[i];

		if (pg_atomic_read_u32(&cell->state) != CELL_RUNNING || cell->note.pid != leader)
			continue;
		take_quit_signal();
		before_shmem_exit(helper_exit, (Datum) 0);
		help(cell, true);
		return;
	}
}

/* The first place where a parallel worker comes by before it runs code of a query. */
static void
executor_start(QueryDesc *query, int eflags)
{
	if (IsParallelWorker() && file != NULL && helped_cell == NULL && MyProc->lockGroupLeader != NULL)
		find_helped(MyProc->lockGroupLeader->pid);
	if (next_executor_start)
		next_executor_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
}

void
crash_init(void)
{
	next_executor_start = ExecutorStart_hook;
	ExecutorStart_hook = executor_start;
}

/* ----------------------------------------------------------------
 * Suspects
 * ----------------------------------------------------------------
 */

int
crash_suspect(int n, Oid database, CrashNote *note)
{
	for (; file != NULL && n < SUSPECTS; n++)
	{
		if (pg_atomic_read_u32(&file->cells[n].state) != CELL_SUSPECT || file->cells[n].note.database != database)
			continue;
		*note = file->cells[n].note;
		return n;
	}
	return -1;
}

void
crash_settled(int n)
{
	pg_atomic_write_u32(&file->cells[n].state, CELL_EMPTY);
}

static void
add_suspect(CrashFile *to, const CrashNote *note)
{
	int			chosen = 0;

	for (int i = 0; i < SUSPECTS; i++)
	{
		if (pg_atomic_read_u32(&to->cells[i].state) == CELL_EMPTY)
		{
			chosen = i;
			break;
		}
		if (to->cells[i].note.started_at < to->cells[chosen].note.started_at)
			chosen = i;
	}
	to->cells[chosen].note = *note;
	/* the file may be anybody's */
	to->cells[chosen].note.loop_name[RECONCILER_ID_MAX] = '\0';
	to->cells[chosen].note.entity_id[ENTITY_ID_MAX] = '\0';
	set_state(&to->cells[chosen], CELL_SUSPECT);
}

/*
 * Takes over the suspects of a file, and finds new ones among its cells; the two
 * files may be the same.  Returns how many are new.
 */
static int
judge(CrashFile *from, CrashFile *to, bool crashed)
{
	bool		told = pg_atomic_read_u32(&from->told) != 0;
	int			n = 0;

	for (int i = 0; i < from->ncells; i++)
	{
		Cell	   *cell = &from->cells[i];
		uint32		state = pg_atomic_read_u32(&cell->state);

		if (i < SUSPECTS)
		{
			if (from != to && state == CELL_SUSPECT)
				add_suspect(to, &cell->note);
			continue;
		}
		if ((state == CELL_RUNNING ||
			 (state == CELL_INNOCENT && pg_atomic_read_u32(&cell->helpers) > 0)) && told && crashed)
		{
			add_suspect(to, &cell->note);
			n++;
		}
		if (from == to)
			pg_atomic_write_u32(&cell->state, CELL_EMPTY);
	}
	pg_atomic_write_u32(&to->told, 0);
	return n;
}

/* ----------------------------------------------------------------
 * The file
 * ----------------------------------------------------------------
 */

static Size
file_size(int ncells)
{
	return offsetof(CrashFile, cells) + sizeof(Cell) * ncells;
}

/* What tells this run of the machine from another: notes of another are stale. */
static void
read_boot_id(char *id)
{
	int			fd = BasicOpenFile(BOOT_ID_FILE, O_RDONLY | PG_BINARY);
	int			n = 0;

	memset(id, 0, BOOT_ID_SIZE);
	if (fd >= 0)
	{
		n = read(fd, id, BOOT_ID_SIZE - 1);
		close(fd);
	}
	/* without one it is good for this postmaster alone */
	if (n <= 0)
		snprintf(id, BOOT_ID_SIZE, "%d at " INT64_FORMAT, MyProcPid, (int64) clock_now());
}

static bool
is_whole(const CrashFile *old, Size size)
{
	return size >= offsetof(CrashFile, cells) && memcmp(old->magic, CRASH_MAGIC, sizeof(old->magic)) == 0 &&
		old->version == CRASH_VERSION && old->cell_size == sizeof(Cell) &&
		old->ncells >= SUSPECTS && old->ncells <= CELLS_MAX && size == file_size(old->ncells);
}

/* What an earlier postmaster has left, palloc'd; NULL: nothing that is of any use. */
static CrashFile *
read_old(const char *boot_id)
{
	int			fd = BasicOpenFile(CRASH_FILE, O_RDONLY | PG_BINARY);
	Size		most = file_size(CELLS_MAX);
	CrashFile  *old;
	Size		size = 0;
	int			n;

	if (fd < 0)
		return NULL;
	old = palloc0(most + 1);
	while (size <= most && (n = read(fd, (char *) old + size, most + 1 - size)) > 0)
		size += n;
	close(fd);
	if (!is_whole(old, size))
		ereport(LOG,
				(errmsg("file \"%s\" is ignored: it was not written by this version of reconcile", CRASH_FILE)));
	else if (memcmp(old->boot_id, boot_id, BOOT_ID_SIZE) == 0)
		return old;
	pfree(old);
	return NULL;
}

/* Written as zeroes first, so that no store ever finds the disk full. */
static CrashFile *
make_file(int ncells)
{
	Size		size = file_size(ncells);
	char	   *zeroes = palloc0(size);
	CrashFile  *made = MAP_FAILED;
	int			fd;

	(void) unlink(CRASH_FILE);
	fd = BasicOpenFilePerm(CRASH_FILE, O_RDWR | O_CREAT | O_EXCL | PG_BINARY, S_IRUSR | S_IWUSR);
	errno = fd < 0 ? errno : 0;
	if (fd >= 0 && write(fd, zeroes, size) == size)
		made = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	else if (errno == 0)
		errno = ENOSPC;
	if (made == MAP_FAILED)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not make file \"%s\": %m", CRASH_FILE),
				 errdetail("Runs that crash the server are not counted.")));
	if (fd >= 0)
		close(fd);
	pfree(zeroes);
	return made == MAP_FAILED ? NULL : made;
}

int
crash_start(int nslots, bool crashed)
{
	char		boot_id[BOOT_ID_SIZE];
	CrashFile  *old;
	int			n = 0;

	/* a single-user session runs no loops, and leaves the file to who does */
	if (!IsPostmasterEnvironment)
		return 0;
	if (file != NULL)
		return judge(file, file, true);

	read_boot_id(boot_id);
	old = read_old(boot_id);
	nexecutors = nslots;
	file = make_file(SUSPECTS + nslots + SESSION_CELLS);
	if (file != NULL)
	{
		memcpy(file->magic, CRASH_MAGIC, sizeof(file->magic));
		file->version = CRASH_VERSION;
		file->cell_size = sizeof(Cell);
		file->ncells = SUSPECTS + nslots + SESSION_CELLS;
		memcpy(file->boot_id, boot_id, BOOT_ID_SIZE);
		if (old != NULL)
			n = judge(old, file, crashed);
	}
	if (old != NULL)
		pfree(old);
	return n;
}
