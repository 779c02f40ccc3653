package driver;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The client side of deploy/quickstart.sh, in one process for both roles, since each start of a JVM costs a second. Reads one
 * command a line on standard input, writes lines of fields separated by tabs:
 *
 * <pre>
 * control          sends one message with a time ahead through the address given, prints "message" when it comes
 * through ADDRESS  a producer and a push consumer against that name server instead, prints "ready"
 * producer ADDRESS just a producer against that name server, prints "ready"
 * send             the messages of the table that any version can send, prints "sent" for each, then "done"; "message" as
 *                  they come, whoever sent them
 * setter VERSION   one message with a setter that only clients of 5.x have, prints "sent", then "done"
 * again ADDRESS    one more consumer, for when that address was gone for a moment, prints "ready"
 *
 * sent     HOW  DUE
 * message  HOW  DUE  STORED  ARRIVED     milliseconds since 1970; DUE is counted from just before the send
 * failed   TEXT
 * </pre>
 */
public final class Quickstart {
    private static final String TIME_PROPERTY = "__STARTDELIVERTIME";
    private static final String HOW_PROPERTY = "how";
    private static final String DUE_PROPERTY = "due";
    /** The first send of a producer looks up the route and opens connections: this one, so that no message of the table does. */
    private static final String WARM_UP = "warm-up";

    private final PrintStream out;
    private final String topic;
    private final CountDownLatch controlSeen = new CountDownLatch(1);
    private final Set<String> printed = ConcurrentHashMap.newKeySet();
    private int consumers;
    private DefaultMQProducer producer;
    private DefaultMQPushConsumer consumer;

    private Quickstart(PrintStream out, String topic) {
        this.out = out;
        this.topic = topic;
    }

    /** Arguments: the topic, and, by whom it is to be created and first used, the address of the real name server. */
    public static void main(String[] args) {
        PrintStream out = System.out;
        try {
            out = Driver.takeStdout();
            Quickstart quickstart = new Quickstart(out, args[0]);
            if (args.length > 1) {
                quickstart.createTopic(args[1]);
                quickstart.connect(args[1]);
            }
            quickstart.obey();
        } catch (Throwable failure) {
            out.println("failed\t" + String.valueOf(failure).replaceAll("\\s+", " "));
        }
        Runtime.getRuntime().halt(0);
    }

    private void obey() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = in.readLine()) != null) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "control":
                    sendTimed("control", 3000);
                    controlSeen.await(10, TimeUnit.SECONDS);
                    break;
                case "through":
                    disconnect();
                    connect(words[1]);
                    break;
                case "again":
                    consume(words[1]);
                    print("ready");
                    break;
                case "producer":
                    produce(words[1]);
                    print("ready");
                    break;
                case "send":
                    sendAll();
                    break;
                case "setter":
                    sendBySetter("client " + words[1] + " +4,321 ms", 4321);
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
        }
    }

    private void createTopic(String namesrv) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("quickstart-admin");
        admin.start();
        Admin.createTopic(admin, topic, 4);
        admin.shutdown();
    }

    private void connect(String namesrv) throws Exception {
        produce(namesrv);
        consumer = consume(namesrv);
        print("ready");
    }

    private void produce(String namesrv) throws Exception {
        producer = new DefaultMQProducer("quickstart-producers");
        producer.setNamesrvAddr(namesrv);
        // Its own instance name for every address: clients that share one share their connections too.
        producer.setInstanceName("producer@" + namesrv.replace(':', '-'));
        producer.start();
        send(message(WARM_UP, System.currentTimeMillis()));
    }

    /**
     * In a group of its own each time, from the beginning of the topic. After a kill of the proxy the consumer from before
     * goes on by itself, but only when its pending pull times out after 30 s: that is how this client treats a closed connection.
     */
    private DefaultMQPushConsumer consume(String namesrv) throws Exception {
        String name = "quickstart-" + ++consumers;
        DefaultMQPushConsumer consumer = Consumers.create(name, name, namesrv);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(this::arrived);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Consumers.awaitAssignment(consumer, topic);
        return consumer;
    }

    private void disconnect() {
        producer.shutdown();
        consumer.shutdown();
    }

    private void sendAll() throws Exception {
        sendTimed("time +1,234 ms", 1234);
        sendTimed("time +6,000 ms", 6000);
        Message level = message("level 1", System.currentTimeMillis() + 1000);
        level.setDelayTimeLevel(1);
        send(level);
        send(message("plain", System.currentTimeMillis()));
        print("done");
    }

    private void sendTimed(String how, long aheadMs) throws Exception {
        long dueMs = System.currentTimeMillis() + aheadMs;
        Message message = message(how, dueMs);
        MessageAccessor.putProperty(message, TIME_PROPERTY, String.valueOf(dueMs));
        send(message);
    }

    private void sendBySetter(String how, long delayMs) throws Exception {
        Message message = message(how, System.currentTimeMillis() + delayMs);
        Messages.set(message, "setDelayTimeMs", delayMs);
        send(message);
        print("done");
    }

    private Message message(String how, long dueMs) {
        Message message = new Message(topic, ("quickstart: " + how).getBytes(StandardCharsets.UTF_8));
        message.putUserProperty(HOW_PROPERTY, how);
        message.putUserProperty(DUE_PROPERTY, String.valueOf(dueMs));
        return message;
    }

    private void send(Message message) throws Exception {
        producer.send(message);
        print("sent", message.getUserProperty(HOW_PROPERTY), message.getUserProperty(DUE_PROPERTY));
    }

    private void arrived(MessageExt message) {
        long now = System.currentTimeMillis();
        String how = message.getUserProperty(HOW_PROPERTY);
        // One row for each message that the broker has, however many consumers see it.
        if (how.equals(WARM_UP) || !printed.add(message.getQueueId() + "/" + message.getQueueOffset())) {
            return;
        }
        print("message", how, message.getUserProperty(DUE_PROPERTY), message.getStoreTimestamp(), now);
        if (how.equals("control")) {
            controlSeen.countDown();
        }
    }

    private synchronized void print(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            line.append(line.length() == 0 ? "" : "\t").append(field);
        }
        out.println(line);
    }
}
