package driver;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Consumer;

/**
 * Stock RocketMQ clients under the command of a test. Standard input carries one JSON object per line: a command with an
 * {@code id} and a {@code cmd}. Standard output carries one JSON object per line and nothing else: replies, which repeat the
 * id, and events, which have an {@code event} field. Clients log to a file under user.home. The process ends with its input.
 *
 * <p>Commands run one after the other in the order they come; only an asynchronous send answers later.
 *
 * <pre>
 * producer.start  name namesrv [group retries timeoutMs vip createTopicKey heartbeatMs]
 * producer.stop   name
 * send            producer topic [mode: sync async oneway selector; key tags keys body bodySize flag properties delayLevel wait
 *                 setters: names and numbers, of which some versions have some]
 * consumer.start  name namesrv topic [group expression sql vip]   then events "message"
 * consumer.stop   name
 * topic.create    namesrv topic [queues]
 * offset.max      namesrv broker topic queue
 * query.unique    namesrv topic key [fromMs toMs]
 * message.view    namesrv topic id
 * mqadmin         line: what would follow "mqadmin" on a command line
 * stop
 * </pre>
 *
 * A reply has {@code ok}; one that is false has {@code exception}, {@code code} (the broker's or the client's, or null)
 * and {@code text}. All times are wall clock milliseconds of this process.
 */
public final class Driver {
    private final PrintStream out;
    private final Producers producers = new Producers();
    private final Consumers consumers;
    private final Admin admin = new Admin();

    private Driver(PrintStream out) {
        this.out = out;
        this.consumers = new Consumers(this::print);
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = takeStdout();
        Driver driver = new Driver(out);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = in.readLine()) != null) {
            if (!driver.run(line)) {
                break;
            }
        }
        // Whoever held the other end is gone or done: a client's orderly farewell would only delay the exit.
        Runtime.getRuntime().halt(0);
    }

    /** Keeps the real standard output for the protocol: what any library prints from now on goes to standard error. */
    static PrintStream takeStdout() throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        return out;
    }

    private boolean run(String line) {
        long id = -1;
        try {
            Request request = new Request(Json.readObject(line));
            id = request.number("id");
            if (request.text("cmd").equals("stop")) {
                reply(id, ok());
                return false;
            }
            long answered = id;
            Map<String, Object> result = perform(request, later -> reply(answered, later));
            if (result != null) {
                reply(id, result);
            }
        } catch (Throwable failure) {
            reply(id, failed(failure));
        }
        return true;
    }

    /** The result, or null where {@code later} will have it. */
    private Map<String, Object> perform(Request request, Consumer<Map<String, Object>> later) throws Exception {
        switch (request.text("cmd")) {
            case "producer.start":
                return producers.start(request);
            case "producer.stop":
                return producers.stop(request);
            case "send":
                return producers.send(request, later);
            case "consumer.start":
                return consumers.start(request);
            case "consumer.stop":
                return consumers.stop(request);
            case "topic.create":
                return admin.createTopic(request);
            case "offset.max":
                return admin.maxOffset(request);
            case "query.unique":
                return admin.queryByUniqueKey(request);
            case "message.view":
                return admin.viewMessage(request);
            case "mqadmin":
                return admin.mqadmin(request);
            default:
                throw new IllegalArgumentException("no such command: " + request.text("cmd"));
        }
    }

    private void reply(long id, Map<String, Object> result) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", id);
        line.putAll(result);
        print(line);
    }

    private void print(Map<String, Object> line) {
        String text = Json.write(line);
        synchronized (out) {
            out.println(text);
        }
    }

    static Map<String, Object> ok() {
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("ok", true);
        return map;
    }

    static Map<String, Object> failed(Throwable failure) {
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("ok", false);
        map.put("exception", failure.getClass().getSimpleName());
        map.put("code", responseCode(failure));
        map.put("text", String.valueOf(failure.getMessage()));
        return map;
    }

    /** The code that the client's exceptions carry, whichever of them this is. */
    private static Integer responseCode(Throwable failure) {
        for (Throwable each = failure; each != null; each = each.getCause()) {
            try {
                int code = (Integer) each.getClass().getMethod("getResponseCode").invoke(each);
                if (code >= 0) {
                    return code;
                }
            } catch (ReflectiveOperationException notOne) {
                continue;
            }
        }
        return null;
    }
}
