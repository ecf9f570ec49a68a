import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs command line tools one after the other in one process, because starting a JVM costs more than most of them.
 *
 * The file named by the first argument has a command in each line: a class and its arguments, separated by tabs. For
 * each, "==== STATUS" is printed, and then what the tool wrote to either stream.
 */
class AllTools {
    static final class Exited extends RuntimeException {
        final int status;

        Exited(int status) {
            super("exit " + status, null, false, false);
            this.status = status;
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            List<String> words = List.of(line.split("\t"));
            var written = new ByteArrayOutputStream();
            var stream = new PrintStream(written, true, StandardCharsets.UTF_8);
            System.setOut(stream);
            System.setErr(stream);
            int[] status = {0};
            Integer[] firstExit = {null}; // some tools catch the exception below, and exit again
            var tool = new Thread(() -> {
                try {
                    Class.forName(words.get(0)).getMethod("main", String[].class)
                        .invoke(null, (Object) words.subList(1, words.size()).toArray(String[]::new));
                } catch (java.lang.reflect.InvocationTargetException error) {
                    status[0] = error.getCause() instanceof Exited exited ? exited.status : 1;
                    if (!(error.getCause() instanceof Exited)) {
                        error.getCause().printStackTrace(stream);
                    }
                } catch (ReflectiveOperationException error) {
                    status[0] = 1;
                    error.printStackTrace(stream);
                }
            });
            Exit.Procedure exit = (code, message) -> {
                if (firstExit[0] == null) {
                    firstExit[0] = code;
                }
                throw new Exited(code);
            };
            Exit.setExitProcedure(exit);
            Exit.setHaltProcedure(exit);
            tool.setDaemon(true);
            tool.start();
            tool.join(120_000);
            if (tool.isAlive()) {
                status[0] = -1;
            } else if (firstExit[0] != null) {
                status[0] = firstExit[0];
            }
            out.println("==== " + status[0]);
            out.println(written.toString(StandardCharsets.UTF_8).strip());
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }
}
